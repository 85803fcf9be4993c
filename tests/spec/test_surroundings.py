from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrl.errors import SpecError
from hpcrl.spec.library import Library
from tests.builders import command_study, dqn_study, write_yaml


def fault_of(tmp_path: Path, study: dict[str, Any]) -> str:
    path = write_yaml(tmp_path / "study.yaml", study)
    with pytest.raises(SpecError) as fault:
        Library().study(str(path))
    return str(fault.value)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "environment: expected one of path, modules, container, got none of them"),
        (
            {"path": "a", "modules": ["b"]},
            "environment: expected one of path, modules, container, got path and modules",
        ),
        ({"pth": "a"}, "environment.pth: unknown key; did you mean 'path'?"),
        ({"path": "/a:b"}, "environment.path: /a:b contains a colon"),
        ({"path": "a\0b"}, "environment.path: contains a NUL character"),
        ({"path": ""}, "environment.path: expected a text of at least 1 characters"),
        ({"container": "-B"}, "environment.container: -B would be read as an option"),
        ({"container": "a", "options": [""]}, "environment.options.0: is empty"),
        ({"container": "a", "options": ["--env", "API_TOKEN=abc"]}, "environment.options: "),
        (
            {"path": "a", "options": ["--nv"]},
            "environment.options: are for a `container`, which is missing: remove them",
        ),
        ({"modules": []}, "environment.modules: is empty: name at least one"),
        ({"modules": "gcc"}, "environment.modules: expected a list, got 'gcc'"),
        ({"modules": ["gcc/12; rm -rf ~"]}, "environment.modules.0: expected "),
        ({"modules": ["--help"]}, "environment.modules.0: expected "),
        ("../x", "environment: expected a name of letters"),
        (["torch"], "environment: expected "),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, environment: Any, expected: str) -> None:
    found = fault_of(tmp_path, command_study(["true"], environment=environment))
    assert expected in found
    assert "study.yaml:" in found
    assert len(found.splitlines()) == 1


@pytest.mark.parametrize("environment", ["none", {"modules": ["gcc"]}, {"container": "a.sif"}])
def test_built_in_training_runs_in_an_environment_of_hpcrl_s_or_a_path(tmp_path: Path, environment: Any) -> None:
    found = fault_of(tmp_path, dqn_study(environment=environment))
    assert "is for commands, and built-in training runs in hpcrl's own process" in found
    assert "with `path`" in found
