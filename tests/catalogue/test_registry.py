from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields as dataclass_fields
from pathlib import Path

import pytest

from hpcrl.catalogue import fields
from hpcrl.catalogue.registry import algorithms, frameworks
from hpcrl.errors import UsageError
from hpcrl.formats.worker import worker_zip


def test_the_catalogue_is_found_inside_the_worker(tmp_path: Path) -> None:
    (tmp_path / "worker.zip").write_bytes(worker_zip())
    program = (
        "import json, sys; from hpcrl.catalogue import registry; "
        "print(json.dumps([registry.__file__, list(registry.algorithms()), list(registry.frameworks()), sorted(sys.modules)]))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": str(tmp_path / "worker.zip")}, capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    file, found_algorithms, found_frameworks, modules = json.loads(done.stdout)
    assert str(tmp_path) in file
    assert (found_algorithms, found_frameworks) == (list(algorithms()), list(frameworks()))
    assert not {"numpy", "pydantic", "psutil", "gymnasium"} & set(modules)


@pytest.mark.parametrize("name", list(algorithms()))
def test_every_setting_has_a_rule_that_its_default_keeps(name: str) -> None:
    settings = algorithms()[name].settings
    for each in dataclass_fields(settings):
        assert fields.fault(settings, each.name, each.default) is None, each.name


def test_settings_are_checked_by_name_type_and_range() -> None:
    settings = algorithms()["dqn"].settings
    assert fields.check("dqn", settings, {"hidden": [8, 4]}).hidden == (8, 4)
    # Values of axes are no lists.
    assert fields.check("dqn", settings, {"hidden": "8x4"}).hidden == (8, 4)
    assert fields.check("dqn", settings, {"filters": "16", "loss": "mse"}).filters == (16,)
    with pytest.raises(UsageError, match=r"dqn: gamma: expected a number from 0 to 1, got -1 \(default 0.99\)"):
        fields.check("dqn", settings, {"gamma": -1})
    with pytest.raises(UsageError, match="dqn: no hyperparameter 'gama'; did you mean 'gamma'"):
        fields.check("dqn", settings, {"gama": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", True), ("learning_rate", "0.1"), ("learning_rate", float("-inf")), ("learning_rate", 10**400),
        ("total_steps", 1.0), ("total_steps", 10**13), ("hidden", []), ("hidden", 8), ("hidden", [8, True]), ("double", "yes"),
        ("hidden", "8x"), ("hidden", "8x0"), ("hidden", "8 x 4"), ("hidden", ""), ("hidden", "-8"),
    ],
)  # fmt: skip
def test_what_does_not_fit(name: str, value: object) -> None:
    assert fields.fault(algorithms()["dqn"].settings, name, value)


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        ("ppo", "clip_range"), ("rainbow", "noise_scale"), ("dqn", "target_share"), ("td3", "target_share"),
        *((name, "learning_rate") for name in ("dqn", "ppo", "rainbow", "td3", "vpg")),
        ("td3", "value_learning_rate"), ("vpg", "value_learning_rate"),
    ],
)  # fmt: skip
def test_what_must_be_above_0(algorithm: str, name: str) -> None:
    settings = algorithms()[algorithm].settings
    assert fields.fault(settings, name, 1e-12) is None
    for value in (0, 0.0, -1e-12):
        assert str(fields.fault(settings, name, value)).startswith("expected a number greater than 0"), value
    assert "share" not in name or "and at most 1, got 1.5" in str(fields.fault(settings, name, 1.5))


def test_variables_before_an_import_keep_what_the_user_said() -> None:
    jax = frameworks()["jax"]
    assert jax.variables(1, {"XLA_FLAGS": "--a"})["XLA_FLAGS"] == "--a --xla_cpu_multi_thread_eigen=false"
    assert "XLA_FLAGS" not in jax.variables(2, {})
    assert jax.variables(2, {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}) == {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
    assert frameworks()["tensorflow"].variables(1, {}) == {"TF_CPP_MIN_LOG_LEVEL": "1"}
