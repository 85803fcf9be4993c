"""One row for each attempt of a cell, from its records and the scheduler's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.submission import Submission
from hpcrl.slurm.client import Completed, Slurm
from tests.builders import cells_of, dqn_study, granted, planned, ranks_study, write_record
from tests.collect.gathering import gathered


def submitted(directory: Path, study: dict[str, Any] | None = None) -> tuple[Path, dict[str, Any], Submission]:
    """A plan of one cell, which Slurm knows as job 7."""
    plan = planned(directory, study or dqn_study(), "sol")
    (cell,) = cells_of(plan)
    ledger = Ledger(plan, create=True)
    claimed = ledger.intend(granted(plan, "0"))
    ledger.submitted(claimed.token, "7")
    ledger.close()
    return plan, cell, claimed


def test_attempts_are_told_apart_and_only_the_newest_counts(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    write_record(plan, cell, "7_0-0", outcome="preempted")
    write_record(plan, cell, "7_0-1")
    done = gathered(tmp_path / "d", plan)
    assert (done.attempts, done.outcomes) == (2, {"completed": 1})
    rows = hpcrl.load(tmp_path / "d")
    assert list(rows["attempt_number"]) == [1, 2]
    assert list(rows["outcome"]) == ["preempted", "completed"]
    assert list(rows["latest"]) == [False, True]


def test_a_cell_of_very_many_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records are read some at a time, and its rows are the same."""
    plan = planned(tmp_path / "plan", dqn_study(seeds=2), "sol")
    for cell in cells_of(plan):
        for number in range(7):
            for restart in range(3):
                write_record(plan, cell, f"{number}_0-{restart}", outcome="preempted" if restart < 2 else "completed")
        for rank in range(4):
            write_record(plan, cell, "9_0-0", rank=rank, ranks=4, node=f"n{rank}")
        write_record(plan, cell, "byhand-5", outcome=None)
    gathered(tmp_path / "whole", plan)
    monkeypatch.setattr("hpcrl.collect.cells.RECORDS", 3)
    gathered(tmp_path / "parts", plan)
    whole, parts = (hpcrl.load(tmp_path / name) for name in ("whole", "parts"))
    pd.testing.assert_frame_equal(whole, parts)
    assert list(whole["attempt_number"]) == [*range(1, 24)] * 2
    assert list(whole["latest"]) == ([False] * 22 + [True]) * 2
    assert set(whole["records"]) == {1, 4}


def test_an_attempt_without_a_record_has_its_place_among_the_others(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(), "sol")
    (cell,) = cells_of(plan)
    ledger = Ledger(plan, create=True)
    names = []
    for attempt, job_id in ((1, "7"), (2, "8")):
        made = ledger.intend(granted(plan, "0", attempt, time=1200 if attempt == 2 else None))
        names.append(made.name)
        ledger.submitted(made.token, job_id)
    ledger.close()
    write_record(plan, cell, "7_0-0", outcome="failed")
    states = f"7_0|FAILED|1:0|9|htc|c1|{names[0]}\n8_0|NODE_FAIL|0:0|2|htc|c2|{names[1]}\n"

    def answer(arguments: Any, cwd: Any, timeout: float) -> Completed:
        return Completed(0, states if "sacct" in arguments and "--noconvert" not in arguments else "", "")

    collect([plan], tmp_path / "d", Slurm(answer))
    rows = hpcrl.load(tmp_path / "d")
    assert list(rows["attempt"]) == ["7_0-0", "8_0"]
    assert list(rows["outcome"]) == ["failed", "node_fail"]
    assert list(rows["latest"]) == [False, True]
    assert list(rows["time_limit"]) == [600, 1200]  # what each attempt asked for
    assert rows["reason"][1] == "it left no record; the scheduler says NODE_FAIL, exit code 0:0"


@pytest.mark.parametrize("last_rank", ["completed", None])
def test_ranks_are_one_row_with_the_failure(tmp_path: Path, last_rank: str | None) -> None:
    plan = planned(tmp_path / "p", ranks_study(3), "sol")
    (cell,) = cells_of(plan)
    write_record(plan, cell, rank=0)
    write_record(plan, cell, rank=1, node="n2", outcome="failed", reason="it broke")
    write_record(plan, cell, rank=2, node="n3", outcome=last_rank)  # or it was ended while it waited for rank 1
    gathered(tmp_path / "d", plan)
    (row,) = hpcrl.load(tmp_path / "d").to_dict("records")
    assert (row["outcome"], row["reason"], row["records"]) == ("failed", "rank 1: it broke", 3)
    assert row["cpu_seconds"] == 6


def test_a_rank_that_kept_a_checkpoint_at_a_signal_speaks_for_those_that_were_ended_with_it(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", ranks_study(3), "sol")
    (cell,) = cells_of(plan)
    write_record(plan, cell, rank=0, outcome="preempted", reason="a checkpoint was kept")
    write_record(plan, cell, rank=1, node="n2", outcome=None)
    write_record(plan, cell, rank=2, node="n3", outcome="completed")
    gathered(tmp_path / "d", plan)
    (row,) = hpcrl.load(tmp_path / "d").to_dict("records")
    assert (row["outcome"], row["reason"], row["records"]) == ("preempted", "a checkpoint was kept", 3)


def test_the_first_rank_that_failed_is_the_cause(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", ranks_study(2), "sol")
    (cell,) = cells_of(plan)
    write_record(plan, cell, rank=0, outcome="failed", reason="Horovod has been shut down", wall_time=9.0)
    write_record(plan, cell, rank=1, outcome="oom", reason="out of memory", wall_time=4.0)
    gathered(tmp_path / "d", plan)
    (row,) = hpcrl.load(tmp_path / "d").to_dict("records")
    assert (row["outcome"], row["reason"]) == ("oom", "rank 1: out of memory")


def test_the_first_failure_is_found_by_the_first_node_s_clock(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", ranks_study(3), "sol")
    (cell,) = cells_of(plan)
    write_record(plan, cell, rank=0, outcome="failed", reason="connection closed", wall_time=9.0)
    ahead = {"started": 8.0, "clock_offset": 7.0}
    write_record(
        plan, cell, rank=1, node="n2", outcome="failed", reason="connection reset", wall_time=5.0, header=ahead
    )
    # Only the first rank of a node knows its clock.
    last = {"started": 8.0}
    write_record(plan, cell, rank=2, node="n2", outcome="failed", reason="a file was gone", wall_time=4.0, header=last)
    gathered(tmp_path / "d", plan)
    assert list(hpcrl.load(tmp_path / "d")["reason"]) == ["rank 2: a file was gone"]


def one_answer(claimed: Submission, state: str, exit_code: str = "0:15") -> Slurm:
    """Slurm that knows job 7 from its accounting."""

    def answer(arguments: Any, cwd: Any, timeout: float) -> Completed:
        known = "sacct" in arguments and "--noconvert" not in arguments
        return Completed(0, f"7_0|{state}|{exit_code}|9|htc|c1|{claimed.name}\n" if known else "", "")

    return Slurm(answer)


@pytest.mark.parametrize("state", ["TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "CANCELLED by 0", "PREEMPTED", "FAILED"])
def test_what_happens_to_a_job_after_its_cell_completed_changes_nothing(tmp_path: Path, state: str) -> None:
    """Agents and TensorBoard's events are written after the footer."""
    plan, cell, claimed = submitted(tmp_path / "p")
    write_record(plan, cell, "7_0-0")
    collect([plan], tmp_path / "d", one_answer(claimed, state))
    (row,) = hpcrl.load(tmp_path / "d").to_dict("records")
    assert (row["outcome"], row["slurm_elapsed"], row["slurm_exit_code"]) == ("completed", 9, "0:15")


@pytest.mark.parametrize("own", ["completed", "preempted", None])
@pytest.mark.parametrize(
    ("state", "outcome", "reason"),
    [
        ("FAILED", "failed", "1 of its ranks left no record; exit code 3:0"),
        ("OUT_OF_MEMORY", "oom", "the scheduler says OUT_OF_MEMORY"),
    ],
)
def test_a_rank_that_left_no_record_is_missed(
    tmp_path: Path, own: str | None, state: str, outcome: str, reason: str
) -> None:
    """As where its node lacks the environment. The other rank completes at once, or the launcher ends it."""
    plan, cell, claimed = submitted(tmp_path / "p", ranks_study(2))
    write_record(plan, cell, "7_0-0", outcome=own)
    collect([plan], tmp_path / "d", one_answer(claimed, state, "3:0"))
    (row,) = hpcrl.load(tmp_path / "d").to_dict("records")
    assert (row["outcome"], row["reason"]) == (outcome, reason)


def test_a_rank_that_says_why_it_failed_counts_more_than_one_without_a_record(tmp_path: Path) -> None:
    plan, cell, claimed = submitted(tmp_path / "p", ranks_study(2))
    write_record(plan, cell, "7_0-0", outcome="oom", reason="out of memory")
    collect([plan], tmp_path / "d", one_answer(claimed, "FAILED"))
    (row,) = hpcrl.load(tmp_path / "d").to_dict("records")
    assert (row["outcome"], row["reason"]) == ("oom", "out of memory")


def test_what_slurm_accounted_is_joined(tmp_path: Path) -> None:
    plan, cell, claimed = submitted(tmp_path / "p")
    write_record(plan, cell, "7_0-0")
    usage = "7_0|htc|01:02:03.5||500|c[1-2]\n7_0.batch||00:00:01|2048||c1\n7_0.0||1-00:00:01|4096K||c[1-2]\n8_0||||\n"

    def answer(arguments: Any, cwd: Any, timeout: float) -> Completed:
        if "squeue" in arguments:
            return Completed(0, "", "")
        return Completed(0, usage if "--noconvert" in arguments else f"7_0|COMPLETED|0:0|9|htc|c1|{claimed.name}\n", "")

    collect([plan], tmp_path / "d", Slurm(answer))
    (row,) = hpcrl.load(tmp_path / "d").to_dict("records")
    assert (row["slurm_state"], row["slurm_elapsed"], row["slurm_cpu_seconds"]) == ("COMPLETED", 9, 3723.5)
    assert (row["slurm_memory_peak"], row["slurm_energy"], row["slurm_nodes"]) == (4096 * 1024, 500, "c[1-2]")


@pytest.mark.parametrize(
    ("state", "outcome"),
    [("TIMEOUT", "timeout"), ("OUT_OF_MEMORY", "oom"), ("NODE_FAIL", "node_fail"), ("FAILED", "failed")],
)
def test_who_ended_a_job_has_the_last_word(tmp_path: Path, state: str, outcome: str) -> None:
    plan, cell, claimed = submitted(tmp_path / "p")
    write_record(plan, cell, "7_0-0", outcome="failed", reason="a file was gone")
    collect([plan], tmp_path / "d", one_answer(claimed, state))
    (row,) = hpcrl.load(tmp_path / "d").to_dict("records")
    assert row["outcome"] == outcome
    assert row["reason"] == ("a file was gone" if state == "FAILED" else f"the scheduler says {state}")
