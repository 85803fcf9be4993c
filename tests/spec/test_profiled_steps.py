"""The environment steps that a profiler looks at, in a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builders import command_study, dqn_study
from tests.spec.test_models import fault_of


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (dqn_study(profile_from=5), "profile_from: there is no profiler: name one, as in `profile: cprofile`"),
        (
            command_study(["python", "x.py"], profile="cprofile", profile_steps=5),
            "profile_steps: counts environment steps of built-in training, and a command has none that hpcrl sees: remove it",
        ),
        (dqn_study(profile="cprofile", profile_steps=-1), "profile_steps: expected a number of at least 0, got -1"),
        (
            dqn_study(axes={"framework": ["numpy"], "profile_from": [0, "late"]}, profile="cprofile"),
            "axes.profile_from.1: expected a whole number of at least 0, got 'late'",
        ),
        (
            dqn_study(
                axes={"framework": [{"framework": "jax", "execution": "fused"}]}, profile="cprofile", profile_steps=9
            ),
            "profile_steps: a fused mode has no Python between its steps: profile the whole training, or leave fused out",
        ),
    ],
)
def test_faults(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    assert expected in fault_of(tmp_path, changes)
