"""What is told of a cell, from all that the ledger, the fence and the scheduler say or do not say."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrl.formats.attempts import Start, end_attempt, note_turned_away, take_attempt
from hpcrl.formats.ledger import FILE, DamagedLedger, Ledger
from hpcrl.formats.plan import read_plan
from hpcrl.formats.processes import this_process
from hpcrl.formats.queues import Queue
from hpcrl.formats.record import SAMPLE_COLUMNS
from hpcrl.formats.submission import SUBMISSIONS, Submission
from hpcrl.slurm.client import Completed, NoAnswer, Slurm
from hpcrl.submit.status import Cancelled, cancel, plan_status
from hpcrl.submit.survey import Survey, survey
from tests.builders import cells_of, dqn_study, granted, planned, write_record
from tests.collect.gathering import rewritten


class Scene:
    """A plan of three cells whose first submission is array job 7, a minute and a half old."""

    def __init__(self, directory: Path) -> None:
        self.plan = planned(directory / "p", dqn_study(seeds=3), "sol")
        self.cells = [cell["id"] for cell in cells_of(self.plan)]
        self.ledger = Ledger(self.plan, create=True)
        self.first = self.submit(granted(self.plan, "0-2"), "7")
        self.queue: str | Exception = ""
        self.accounting: str | Exception = ""
        self.steps = ""

    def submit(self, submission: Submission, *job_ids: str, age: float = 90.0) -> Submission:
        made = self.ledger.intend(submission)
        if job_ids:
            self.ledger.submitted(made.token, *job_ids)
        old = time.time() - age
        os.utime(self.plan / SUBMISSIONS / made.token, (old, old))
        return made

    def begin(
        self, cell: int, attempt: int = 1, key: str = "7_0", outcome: str | None = None, token: str | None = None
    ) -> None:
        start = Start(self.cells[cell], str(attempt), 0, key, f"mark-{key}")
        assert take_attempt(self.plan, start, {"token": token or self.first.token}) is None
        if outcome:
            end_attempt(self.plan, start, outcome)

    def run(self, arguments: Sequence[str], cwd: Path | None, timeout: float) -> Completed:
        if "-j" in arguments:
            return Completed(0, self.steps, "")
        answer = self.queue if "squeue" in arguments else self.accounting
        if isinstance(answer, Exception):
            raise answer
        if "squeue" in arguments:
            answer = re.sub(r"\|(?=[^|\n]*$)", "||", answer, flags=re.MULTILINE)  # of no node yet
        return Completed(0, answer.replace("NAME", self.first.name), "")

    def look(self) -> Survey:
        return survey(self.plan, read_plan(self.plan), self.ledger, Slurm(self.run))

    def states(self) -> list[str]:
        units = self.look().units
        return [units[cell].state if cell in units else "-" for cell in self.cells]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_queued_running_and_completed(scene: Scene) -> None:
    scene.queue = "7_[1-2%1]|PENDING|JobArrayTaskLimit|NAME\n7_0|RUNNING|None|NAME\n"
    assert scene.states() == ["RUNNING", "PENDING", "PENDING"]
    reason = scene.look().units[scene.cells[1]].reason
    assert reason == "JobArrayTaskLimit: the plan limits how many tasks of this array run at once; this one follows"
    scene.begin(0, outcome="completed")
    assert scene.states()[0] == "COMPLETED"


def test_slurm_holds_a_task_whose_cell_has_completed(scene: Scene) -> None:
    """Its node failed after the cell's end, and then again at the start of the requeued task."""
    scene.queue = "7_1|PENDING|launch failed requeued held|NAME\n7_2|PENDING|Priority|NAME\n"
    for cell in range(3):
        scene.begin(cell, key=f"7_{cell}", outcome="completed")
    assert scene.states() == ["COMPLETED"] * 3
    assert scene.look().held == ["7_1"]  # the other one starts, and is turned away
    ended: list[str] = []

    def run(arguments: Sequence[str], cwd: Path | None, timeout: float) -> Completed:
        if "scancel" in arguments:
            ended.extend(arguments[1:])
            return Completed(0, "", "")
        return scene.run(arguments, cwd, timeout)

    assert (
        "tasks that Slurm holds although their cells have completed: 1" in plan_status(scene.plan, Slurm(run)).notes[0]
    )
    scene.ledger.close()
    assert cancel(scene.plan, Slurm(run), []) == Cancelled(0, 0, held=1)
    assert "7" in ended


def test_nobody_knows_of_it(scene: Scene) -> None:
    assert scene.states() == ["LOST"] * 3
    scene.begin(1, key="7_1")  # it had begun
    assert scene.states() == ["LOST"] * 3
    os.utime(scene.plan / SUBMISSIONS / scene.first.token)
    assert scene.states() == ["UNCONFIRMED"] * 3


def test_a_foreign_job_with_its_id_says_nothing_of_it(scene: Scene) -> None:
    scene.queue = "7_[0-2]|PENDING|None|somebody-else\n"
    scene.accounting = "7_0|COMPLETED|0:0|3|htc|c1|somebody-else\n"
    assert scene.states() == ["LOST"] * 3


def test_a_waiting_task_that_slurm_no_longer_lists_was_cancelled(scene: Scene) -> None:
    scene.queue = "7_[0,2]|PENDING|None|NAME\n"
    assert scene.states() == ["PENDING", "CANCELLED", "PENDING"]
    # Had it begun, then it is lost, not cancelled.
    scene.begin(1, key="7_1")
    assert scene.states() == ["PENDING", "LOST", "PENDING"]


def test_what_the_user_cancelled_stays_cancelled_when_slurm_has_forgotten_all(scene: Scene) -> None:
    scene.ledger.cancel(scene.first.token, [0, 1])
    assert scene.states() == ["CANCELLED", "CANCELLED", "LOST"]


@pytest.mark.parametrize(
    ("queue", "accounting", "note"),
    [
        (NoAnswer("x"), "", "squeue: gave no answer within 30 s"),
        ("", NoAnswer("x"), "sacct: gave no answer within 30 s"),
        (NoAnswer("x"), NoAnswer("x"), "squeue"),
    ],
)
def test_who_could_not_be_asked_is_not_believed_to_have_said_no(
    scene: Scene, queue: str | Exception, accounting: str | Exception, note: str
) -> None:
    scene.queue, scene.accounting = queue, accounting
    scene.begin(0, outcome="completed")
    assert scene.states() == ["COMPLETED", "UNKNOWN", "UNKNOWN"]
    found = scene.look()
    assert note in found.notes[0]
    assert not found.answered


def test_completed_needs_the_footer(scene: Scene) -> None:
    scene.accounting = "".join(f"7_{task}|COMPLETED|0:0|3|htc|c1|NAME\n" for task in range(3))
    scene.begin(0, outcome="completed")
    scene.begin(1, key="7_1")
    write_record(scene.plan, {**cells_of(scene.plan)[1]}, "7_1-0", outcome=None)
    assert scene.states() == ["COMPLETED", "FAILED", "FAILED"]
    reason = scene.look().units[scene.cells[2]].reason
    assert reason == "Slurm says COMPLETED, but its record has no footer"
    # A footer without the mark, as when the disk was full for a moment: the record counts.
    write_record(scene.plan, cells_of(scene.plan)[2], "7_2-0")
    assert scene.states() == ["COMPLETED", "FAILED", "COMPLETED"]


@pytest.mark.parametrize(
    ("slurm", "own", "told"),
    [
        ("FAILED", "oom", "OUT_OF_MEMORY"),
        ("FAILED", "timeout", "TIMEOUT"),
        ("FAILED", "failed", "FAILED"),
        ("COMPLETED", "preempted", "PREEMPTED"),
        ("TIMEOUT", None, "TIMEOUT"),
        ("NODE_FAIL", None, "NODE_FAIL"),
        ("CANCELLED by 0", "preempted", "CANCELLED"),
        ("FAILED", "completed", "COMPLETED"),
    ],
)
def test_slurm_s_word_and_the_record_s(scene: Scene, slurm: str, own: str | None, told: str) -> None:
    scene.begin(0, outcome=own)
    scene.accounting = f"7_0|{slurm}|1:0|3|htc|c1|NAME\n"
    assert scene.states()[0] == told


def test_an_unconfirmed_submission(scene: Scene) -> None:
    scene.submit(granted(scene.plan, "1", 2))
    scene.begin(0, outcome="completed")
    scene.queue = "7_2|RUNNING|None|NAME\n"
    assert scene.states() == ["COMPLETED", "UNCONFIRMED", "RUNNING"]


def test_waiting_ends_where_nothing_moves_by_itself(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> tuple[bool, bool]:
        status = plan_status(scene.plan, Slurm(scene.run))
        return status.live(), status.stuck()

    scene.queue = "7_[1-2]|PENDING|Priority|NAME\n7_0|RUNNING|None|NAME\n"
    assert told() == (True, False)
    scene.queue = "7_[0-2]|PENDING|launch failed requeued held|NAME\n"
    assert told() == (True, True)
    scene.queue = "7_[0-1]|PENDING|JobHeldUser|NAME\n7_2|RUNNING|None|NAME\n"
    assert told() == (True, False)
    # An sbatch of hours ago that nobody has settled: only `hpcrl submit` can.
    scene.queue = ""
    scene.ledger.refused(scene.first.token, "x")
    scene.submit(granted(scene.plan, "0-2"))
    assert told() == (True, False)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert told() == (True, True)


def test_attempts_are_ordered_by_number_and_not_by_clock(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    second = scene.submit(granted(scene.plan, "0-2", 2), "8")
    scene.accounting = "7_[0-2]|CANCELLED by 0|0:0|0|htc||NAME\n"
    scene.queue = f"8_[0-2]|PENDING|None|{second.name}\n"
    assert scene.states() == ["PENDING"] * 3


def test_of_two_submissions_of_one_attempt_the_one_that_runs_it_counts(scene: Scene) -> None:
    second = scene.submit(granted(scene.plan, "0-2"), "8")
    scene.begin(0, key="8_0")
    note_turned_away(scene.plan, Start(scene.cells[0], "1", 0, "7_0", "m"))
    scene.accounting = "7_0|COMPLETED|0:0|0|htc|c1|NAME\n"
    scene.queue = f"8_0|RUNNING|None|{second.name}\n7_[1-2]|PENDING|None|NAME\n"
    assert scene.states() == ["RUNNING", "PENDING", "PENDING"]
    assert "second starts that were turned away: 1 (" in scene.look().notes[0]


def test_a_submission_given_up_that_turns_up_all_the_same(scene: Scene) -> None:
    scene.ledger.gone(scene.first.token, "sbatch did not hand it to Slurm")
    assert scene.states() == ["LOST"] * 3
    scene.queue = "9_[0-2]|PENDING|None|NAME\n"
    assert scene.states() == ["PENDING"] * 3


def test_several_cells_in_one_array_task(scene: Scene) -> None:
    scene.ledger.refused(scene.first.token, "not this one")
    made = scene.submit(granted(scene.plan, "0-2", cells_per_task=2), "9")
    scene.queue = f"9_0|RUNNING|None|{made.name}\n9_1|PENDING|Priority|{made.name}\n"
    scene.begin(0, key="9_0", outcome="failed")
    assert scene.states() == ["FAILED", "PENDING", "PENDING"]
    scene.begin(1, key="9_0")
    assert scene.states() == ["FAILED", "RUNNING", "PENDING"]
    scene.queue = f"9_1|PENDING|Priority|{made.name}\n"
    scene.accounting = f"9_0|TIMEOUT|0:0|600|htc|c1|{made.name}\n"
    assert scene.states() == ["FAILED", "TIMEOUT", "PENDING"]


def test_a_cell_run_by_hand_counts_once_it_has_completed(scene: Scene) -> None:
    scene.accounting = "7_0|FAILED|1:0|3|htc|c1|NAME\n"
    start = Start(scene.cells[0], "byhand-20261122T1-5", 0, "byhand-20261122T1-5", "m")
    take_attempt(scene.plan, start, {})
    assert scene.states()[0] == "FAILED"
    end_attempt(scene.plan, start, "completed")
    found = scene.look().units[scene.cells[0]]
    assert (found.state, found.reason) == ("COMPLETED", "run by hand")


def test_a_start_that_was_turned_away_while_another_job_runs_the_cell(scene: Scene) -> None:
    scene.begin(0, key="9_0")
    scene.accounting = "7_0|COMPLETED|0:0|3|htc|c1|NAME\n"
    record = write_record(scene.plan, cells_of(scene.plan)[0], "9_0-0", outcome=None)
    for taken in (scene.plan / "attempts").iterdir():
        os.utime(taken, (time.time() - 90, time.time() - 90))
    found = scene.look().units[scene.cells[0]]
    assert (found.state, found.reason) == ("RUNNING", "job 9_0 runs it")
    os.utime(record, (time.time() - 90, time.time() - 90))
    assert scene.states()[0] == "FAILED"


def test_a_start_that_was_turned_away_before_the_other_job_has_a_record(scene: Scene) -> None:
    scene.begin(0, key="9_0")
    scene.accounting = "7_0|COMPLETED|0:0|3|htc|c1|NAME\n"
    found = scene.look().units[scene.cells[0]]
    assert (found.state, found.reason) == ("RUNNING", "job 9_0 runs it")
    for taken in (scene.plan / "attempts").iterdir():
        os.utime(taken, (time.time() - 90, time.time() - 90))
    assert scene.states()[0] == "FAILED"


def test_a_log_that_slurm_could_not_open(scene: Scene) -> None:
    scene.accounting = "7_0|FAILED|0:53|0|htc|c1|NAME\n"
    found = scene.look().units[scene.cells[0]]
    assert found.reason == "Slurm could not open its log or enter the plan directory: was logs/ or the plan removed?"


def test_a_log_that_slurm_could_not_open_before_accounting_knows_why(scene: Scene) -> None:
    scene.queue = "7_0|FAILED|NonZeroExitCode|NAME\n"
    assert scene.look().units[scene.cells[0]].reason is None
    shutil.rmtree(scene.plan / "logs")
    assert "was logs/ or the plan removed?" in str(scene.look().units[scene.cells[0]].reason)


def test_a_local_queue_that_died(scene: Scene) -> None:
    scene.ledger.refused(scene.first.token, "x")
    token = scene.submit(granted(scene.plan, "0-2", executor="local"), str(os.getpid())).token
    assert scene.states() == ["LOST"] * 3
    Queue(scene.plan, [token])
    assert scene.states() == ["PENDING"] * 3


@pytest.mark.parametrize("other", [{"process_started": 1.0}, {"pid": 999_999_999}])
def test_a_local_queue_whose_process_id_is_another_s(scene: Scene, other: dict[str, Any]) -> None:
    scene.ledger.refused(scene.first.token, "x")
    token = scene.submit(granted(scene.plan, "0-2", executor="local"), str(os.getpid())).token
    path = scene.plan / "queues" / token
    path.parent.mkdir()
    path.write_text(json.dumps({"tokens": [token], **this_process(), **other}))
    assert scene.states() == ["LOST"] * 3


def test_a_local_queue_on_another_host_lives_while_it_touches_its_file(scene: Scene) -> None:
    scene.ledger.refused(scene.first.token, "x")
    token = scene.submit(granted(scene.plan, "0-2", executor="local", host="far"), "7").token
    path = scene.plan / "queues" / token
    path.parent.mkdir()
    path.write_text(json.dumps({"tokens": [token], **this_process(), "host": "far"}))
    assert scene.states() == ["PENDING"] * 3
    os.utime(path, (time.time() - 100, time.time() - 100))
    assert scene.states() == ["LOST"] * 3


def test_a_cell_runs_on_when_its_local_queue_has_ended(scene: Scene) -> None:
    scene.ledger.refused(scene.first.token, "x")
    token = scene.submit(granted(scene.plan, "0-2", executor="local"), "7").token
    scene.ledger.local_start(token, 0)
    start = Start(scene.cells[0], "1", 0, f"{token}_0", "m")
    take_attempt(scene.plan, start, this_process())
    found = scene.look().units[scene.cells[0]]
    assert (found.state, found.reason) == ("RUNNING", "its local queue has ended, but the cell still runs")
    end_attempt(scene.plan, start, "completed")
    assert scene.states() == ["COMPLETED", "LOST", "LOST"]


def test_a_cancelled_local_cell_stays_cancelled_when_its_queue_has_ended(scene: Scene) -> None:
    """Its own record says that it was preempted: it was ended by TERM."""
    scene.ledger.refused(scene.first.token, "x")
    token = scene.submit(granted(scene.plan, "0-2", executor="local"), "7").token
    for task, cell in enumerate(scene.cells):
        start = Start(cell, "1", 0, f"{token}_{task}", "m")
        take_attempt(scene.plan, start, {})
        end_attempt(scene.plan, start, "preempted")
    scene.ledger.local_end(token, 0, "CANCELLED", None)
    scene.ledger.local_start(token, 1)
    scene.ledger.local_cancel(token, 1)
    assert scene.states() == ["CANCELLED", "CANCELLED", "PREEMPTED"]


def test_a_step_that_slurm_ended_for_its_memory(scene: Scene) -> None:
    scene.begin(0)
    scene.accounting = "7_0|FAILED|1:0|3|htc|c1|NAME\n"
    scene.steps = "7_0|FAILED\n7_0.batch|FAILED\n7_0.0|OUT_OF_MEMORY\n"
    assert scene.states()[0] == "OUT_OF_MEMORY"


def test_without_a_submission_cells_run_by_hand_are_seen(scene: Scene) -> None:
    scene.ledger.close()
    (scene.plan / FILE).unlink()
    with pytest.raises(DamagedLedger, match="is missing: `hpcrl submit` rebuilds it"):
        plan_status(scene.plan, Slurm(scene.run))
    shutil.rmtree(scene.plan / SUBMISSIONS)
    start = Start(scene.cells[1], "byhand-1", 0, "byhand-1", "m")
    take_attempt(scene.plan, start, {})
    end_attempt(scene.plan, start, "completed")
    assert plan_status(scene.plan, Slurm(scene.run)).counts() == {"NOT SUBMITTED": 2, "COMPLETED": 1}


@pytest.mark.parametrize(("used", "told"), [(0.97, "OUT_OF_MEMORY"), (0.5, "FAILED")])
def test_out_of_memory_that_only_the_samples_show(scene: Scene, used: float, told: str) -> None:
    scene.begin(0)
    cell = cells_of(scene.plan)[0]
    path = write_record(scene.plan, cell, "7_0-0", outcome=None)
    with rewritten(path) as writer:
        row = np.full((1, len(SAMPLE_COLUMNS)), np.nan)
        row[0, SAMPLE_COLUMNS.index("rss")] = used * cell["resources"]["memory"] * 2**20
        writer.write("samples", {"table": row})
    scene.accounting = "7_0|FAILED|0:9|3|htc|c1|NAME\n"
    assert scene.states()[0] == told


def test_a_cell_whose_record_still_grows_is_not_lost_whoever_forgot_it(scene: Scene) -> None:
    """As when squeue and sacct both answer with nothing for a moment."""
    scene.begin(0)
    path = write_record(scene.plan, cells_of(scene.plan)[0], "7_0-0", outcome=None)
    assert scene.states() == ["UNKNOWN", "LOST", "LOST"]
    os.utime(path, (time.time() - 90, time.time() - 90))
    assert scene.states() == ["LOST"] * 3


def test_a_local_cell_that_outlives_its_queue_is_not_lost(scene: Scene) -> None:
    scene.ledger.refused(scene.first.token, "x")
    made = scene.submit(granted(scene.plan, "0-2", executor="local"), "999999999")
    scene.begin(1, key="local-x_1", token=made.token)
    write_record(scene.plan, cells_of(scene.plan)[1], "local-x_1", outcome=None)
    assert scene.states() == ["LOST", "UNKNOWN", "LOST"]
