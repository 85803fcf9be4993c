"""Datasets and `hpcrl status` say the same of an attempt: one cell or several in an array task, one rank or several."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.formats.attempts import Start, end_attempt
from hpcrl.formats.ledger import FILE
from hpcrl.formats.submission import Submission
from hpcrl.slurm.client import NoAnswer, Slurm
from hpcrl.submit.status import plan_status
from tests.builders import cells_of, granted, write_record
from tests.submit.test_survey import Scene

OUTCOMES = {
    "COMPLETED": "completed", "FAILED": "failed", "TIMEOUT": "timeout", "OUT_OF_MEMORY": "oom", "CANCELLED": "cancelled",
    "PREEMPTED": "preempted", "NODE_FAIL": "node_fail", "LOST": "lost", "RUNNING": "running", "PENDING": None,
}  # fmt: skip


class Shared(Scene):
    """A plan of three cells in one array task, 9_0."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.ledger.refused(self.first.token, "not this one")
        self.made: Submission = self.submit(granted(self.plan, "0-2", cells_per_task=3), "9")

    def ran(self, cell: int, outcome: str | None = None) -> None:
        """Let a cell begin and, with an outcome, end."""
        self.begin(cell, key="9_0", outcome=outcome)
        write_record(self.plan, cells_of(self.plan)[cell], "9_0-0", outcome=outcome)

    def ended(self, state: str) -> None:
        self.accounting = f"9_0|{state}|1:0|600|htc|c1|{self.made.name}\n"


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return Shared(tmp_path)


def told(scene: Scene) -> tuple[list[str | None], pd.DataFrame]:
    """Return the outcome of each cell, which must be the same for both, and the dataset's rows; None: it waits."""
    dataset = scene.plan.parent / "d"
    collect([scene.plan], dataset, Slurm(scene.run))
    rows = hpcrl.load(dataset).set_index("cell")
    outcomes = [rows["outcome"].get(cell) for cell in scene.cells]
    statuses = plan_status(scene.plan, Slurm(scene.run)).statuses
    assert [OUTCOMES[status.state] for status in statuses] == outcomes
    return outcomes, rows


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("TIMEOUT", "timeout"),
        ("OUT_OF_MEMORY", "oom"),
        ("CANCELLED by 0", "cancelled"),
        ("NODE_FAIL", "node_fail"),
        ("PREEMPTED", "preempted"),
    ],
)
@pytest.mark.parametrize("last", [None, "preempted"])
def test_the_end_of_a_task_is_that_of_the_cell_that_ran(
    shared: Shared, state: str, outcome: str, last: str | None
) -> None:
    """Of a signal only Slurm knows who sent it."""
    shared.ran(0, "completed")
    shared.ran(1, "failed")
    shared.ran(2, last)
    shared.ended(state)
    outcomes, rows = told(shared)
    assert outcomes == ["completed", "failed", outcome]
    assert list(rows["slurm_state"].fillna("")[shared.cells]) == ["", "", state.partition(" ")[0]]
    assert rows[["slurm_elapsed", "slurm_exit_code"]].isna().all(axis=None)
    assert set(rows["submission"]) == {shared.made.token}


@pytest.mark.parametrize(
    ("state", "second", "outcomes"),
    [
        ("TIMEOUT", None, ["completed", "timeout", "lost"]),
        ("DEADLINE", "timeout", ["completed", "timeout", "lost"]),
        ("OUT_OF_MEMORY", "oom", ["completed", "oom", "lost"]),
        ("FAILED", "timeout", ["completed", "timeout", "lost"]),
        ("COMPLETED", "preempted", ["completed", "preempted", "lost"]),
        ("CANCELLED", "preempted", ["completed", "cancelled", "cancelled"]),
        ("NODE_FAIL", None, ["completed", "node_fail", "node_fail"]),
        ("PREEMPTED", "preempted", ["completed", "preempted", "preempted"]),
    ],
)
def test_a_cell_that_had_not_begun_has_no_part_in_the_end_of_another(
    shared: Shared, state: str, second: str | None, outcomes: list[str]
) -> None:
    shared.ran(0, "completed")
    shared.ran(1, second)
    shared.ended(state)
    found, rows = told(shared)
    assert found == outcomes
    if outcomes[2] == "lost":
        reason = "its array task ended before it began; {} says " + f"{state} of the task"
        assert rows["reason"][shared.cells[2]] == reason.format("the scheduler")
        assert plan_status(shared.plan, Slurm(shared.run)).statuses[2].reason == reason.format("Slurm")


def test_a_cell_that_was_ended_by_a_signal_has_no_part_in_the_failure_of_another(shared: Shared) -> None:
    """The exit code of the task is that of the first failure."""
    shared.ran(0, "failed")
    shared.ran(1, "preempted")
    shared.ended("FAILED")
    assert told(shared)[0] == ["failed", "preempted", "lost"]


@pytest.mark.parametrize("state", ["TIMEOUT", "FAILED"])
def test_if_no_cell_began_the_end_of_the_task_is_that_of_all(shared: Shared, state: str) -> None:
    """Its script failed or hung: the same happens again, and a retry counts it."""
    shared.ended(state)
    assert told(shared)[0] == [OUTCOMES[state]] * 3


@pytest.mark.parametrize("begun", [True, False])
def test_cells_of_a_task_that_runs(shared: Shared, begun: bool) -> None:
    shared.queue = f"9_0|RUNNING|None|{shared.made.name}\n"
    if begun:
        shared.ran(0, "completed")
        shared.ran(1)
    assert told(shared)[0] == (["completed", "running", None] if begun else [None] * 3)


def test_the_answers_that_an_older_dataset_keeps_are_read(shared: Shared) -> None:
    """It does not say that they are of several cells, and no ledger is left that could."""
    shared.ran(0, "completed")
    shared.ended("TIMEOUT")
    told(shared)
    kept = shared.plan.parent / "d/records/accounting.parquet"
    pq.write_table(pq.read_table(kept).drop_columns(["shared", "unbegun"]), kept)
    shared.ledger.close()
    (shared.plan / FILE).unlink()
    collect([shared.plan], shared.plan.parent / "d", Slurm(shared.run))
    assert sorted(hpcrl.load(shared.plan.parent / "d")["outcome"]) == ["completed", "timeout", "timeout"]


@pytest.mark.parametrize(
    ("first", "second", "outcome", "reason"),
    [
        ("failed", "oom", "oom", "rank 1: second"),
        ("failed", "diverged", "failed", "rank 1: second"),
        ("diverged", "failed", "failed", "rank 0: first"),
        ("oom", "failed", "oom", "rank 0: first"),
        ("failed", "failed", "failed", "rank 0: first"),
        ("preempted", "timeout", "timeout", "second"),
    ],
)
def test_ranks_that_ended_differently(tmp_path: Path, first: str, second: str, outcome: str, reason: str) -> None:
    """The first rank ends at 5 s, the second at 10 s."""
    scene = Scene(tmp_path)
    scene.begin(0)
    start = Start(scene.cells[0], "1", 0, "7_0", "mark-7_0")
    for rank, (own, words, wall) in enumerate(((first, "first", 4.0), (second, "second", 9.0))):
        cell = cells_of(scene.plan)[0]
        write_record(scene.plan, cell, "7_0-0", rank=rank, outcome=own, reason=words, wall_time=wall)
        end_attempt(scene.plan, start, own, rank, 2)
    scene.accounting = "7_0|FAILED|1:0|3|htc|c1|NAME\n"
    collect([scene.plan], tmp_path / "d", Slurm(scene.run))
    row = hpcrl.load(tmp_path / "d").set_index("cell").loc[scene.cells[0]]
    status = plan_status(scene.plan, Slurm(scene.run)).statuses[0]
    assert (row["reason"], status.reason) == (reason, reason)
    assert OUTCOMES[status.state] == outcome
    assert row["outcome"] in (outcome, "diverged")  # to status a divergence is a failure


@pytest.mark.parametrize("by", ["hpcrl", "scancel"])
@pytest.mark.parametrize("accounting", ["it knows the job", "it forgot the job", "it does not answer"])
def test_a_waiting_task_that_was_cancelled_and_that_slurm_forgets(tmp_path: Path, by: str, accounting: str) -> None:
    """Of what others cancelled Slurm must still know the job. While it does not answer, the task may wait: it has no row."""
    scene = Scene(tmp_path)
    scene.begin(0)
    scene.accounting = "7_0|CANCELLED by 0|0:0|3|htc|c1|NAME\n" if accounting == "it knows the job" else ""
    if accounting == "it does not answer":
        scene.accounting = NoAnswer("no answer")
    if by == "hpcrl":
        scene.ledger.cancel(scene.first.token, [0, 1, 2])
    said: list[str] = []
    collect([scene.plan], tmp_path / "d", Slurm(scene.run), say=said.append)
    rows = hpcrl.load(tmp_path / "d").set_index("cell")["outcome"]
    states = [status.state for status in plan_status(scene.plan, Slurm(scene.run)).statuses]
    waiting = {"it knows the job": "CANCELLED", "it forgot the job": "LOST", "it does not answer": "UNKNOWN"}[
        accounting
    ]
    waiting = "CANCELLED" if by == "hpcrl" and waiting == "LOST" else waiting
    assert states[1:] == [waiting] * 2
    assert [rows.get(cell) for cell in scene.cells[1:]] == [OUTCOMES.get(waiting)] * 2
    assert len(said) == (accounting == "it does not answer")
    assert all("sacct: gave no answer within 30 s: what became of 3 attempts of" in line for line in said)
