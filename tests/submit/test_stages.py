"""Which environments the stage before the cells builds, on a Slurm that says what the test wants."""

from __future__ import annotations

from pathlib import Path

from hpcrl.formats.ledger import Ledger
from hpcrl.submit.selection import Choice
from tests.builders import dqn_study, planned
from tests.submit.test_submission import FakeSlurm, fake, sent

__all__ = ["fake"]

BOTH = {"framework": ["numpy", "torch"]}


def stages_of(plan: Path) -> list[list[str]]:
    """Return the names of the environments that each stage of environments builds."""
    ledger = Ledger(plan)
    made = [each.environments or () for each in ledger.submissions() if each.job.endswith("-environments")]
    ledger.close()
    return [[key.partition("-")[0] for key in keys] for keys in made]


def number_of(fake: FakeSlurm, job: str) -> int:
    """Return the place of the last submission of a job of the plan."""
    return max(number for number in range(len(fake.submitted)) if fake.option(number, "job-name").startswith(f"{job}."))


def test_a_stage_builds_what_the_submitted_cells_need_and_a_later_one_the_rest(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", dqn_study(axes=BOTH, chain="staged"), "sol")
    sent(plan, fake, Choice(where=("framework=numpy",)))
    assert stages_of(plan) == [["numpy"]]
    sent(plan, fake)  # while the first stage waits
    assert stages_of(plan) == [["numpy"], ["torch"]]
    stage = 100 + number_of(fake, "short-environments")
    assert fake.option(number_of(fake, "short-torch-cpu-1"), "dependency") == f"afterok:{stage}"
    for _ in range(2):  # what is built is not built again
        fake.states = {
            key: "COMPLETED" if "-environments." in fake.names[key.partition("_")[0]] else "FAILED"
            for key in fake.states
        }
        sent(plan, fake)
        assert stages_of(plan) == [["numpy"], ["torch"], ["numpy", "torch"]]
    sent(plan, fake)
    assert len(stages_of(plan)) == 3


def test_what_cannot_be_built_stops_only_the_cells_that_need_it(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", dqn_study(axes=BOTH, chain="staged"), "sol")
    sent(plan, fake)
    fake.states = {key: "FAILED" if key == "100_0" else "CANCELLED" for key in fake.states}
    sent(plan, fake, Choice(where=("framework=numpy",)))
    assert stages_of(plan) == [["numpy", "torch"], ["numpy"]]


def test_cells_of_one_job_with_several_environments(tmp_path: Path, fake: FakeSlurm) -> None:
    plan = planned(tmp_path / "p", dqn_study(axes=BOTH, chain="staged", one_job_per="resources"), "sol")
    sent(plan, fake, Choice(where=("framework=torch",)))
    assert stages_of(plan) == [["torch"]]
