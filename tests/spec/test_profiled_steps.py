"""The environment steps that a profiler looks at, in a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrl.spec.study import Study
from hpcrl.spec.training import training_notes
from tests.builders import command_study, dqn_study
from tests.spec.test_models import fault_of


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (dqn_study(profile_from=5), "profile_from: there is no profiler: name one, as in `profile: cprofile`"),
        (
            command_study(["python", "x.py"], profile="cprofile", profile_steps=5),
            "profile_steps: it counts environment steps of built-in training, and a command has none that hpcrl sees: remove it",
        ),
        (
            dqn_study(profile=["cprofile", "memray"]),
            "profile: expected one profiler; to run cells under several, make it an axis",
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


@pytest.mark.parametrize(("steps", "late"), [(1_999, False), (2_000, True), (10**30, True)])
def test_a_profiler_that_begins_after_the_end_is_noted(steps: int, late: bool) -> None:
    study = dqn_study(axes={"framework": ["numpy"]}, profile="cprofile", profile_from=steps)
    study["workload"]["hyperparameters"] |= {"total_steps": 2_000}
    notes = training_notes(Study.model_validate(study))
    told = f"the profiler would begin at step {steps:,} (profile_from), and the training has 2,000 steps"
    assert any(told in note for note in notes) == late, notes
