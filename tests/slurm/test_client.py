"""What is made of the scheduler's answers, right, wrong, late and missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcrl.errors import HpcrlError
from hpcrl.slurm.client import (
    Completed,
    NoAnswer,
    NotInstalled,
    Refused,
    Slurm,
    Unconfirmed,
    View,
    run_command,
)
from hpcrl.slurm.reasons import explain, is_stuck

PROGRAMS = ("sbatch", "squeue", "sacct", "scancel")


def answering(**answers: str | Completed | Exception) -> Slurm:
    def run(arguments: Sequence[str], cwd: Path | None, timeout: float) -> Completed:
        program = next(word for word in arguments if word in PROGRAMS)
        answer = answers.get(program, Completed(1, "", "down"))
        if isinstance(answer, Exception):
            raise answer
        return Completed(0, answer, "") if isinstance(answer, str) else answer

    return Slurm(run)


def states(view: View, name: str) -> dict[int, str]:
    return {index: each.state for tasks in view.jobs.get(name, {}).values() for index, each in tasks.items()}


def test_the_live_queue_wins_over_late_accounting() -> None:
    view = answering(
        sacct="7_0|COMPLETED|0:0|12|htc|c1|a.x\n7_1|PENDING|0:0|0|htc||a.x\n7_[2-3]|PENDING|0:0|0|htc||a.x\n"
        "8|RUNNING|0:0|1||c2|b.y\n9|CANCELLED by 0|0:15|3|htc|c3|c.z\n",
        squeue="7_1|RUNNING|None||a.x\n7_2|PENDING|Resources||a.x\n",
    ).look(["a.x", "b.y", "c.z"], 0.0)
    # Task 3 is live for accounting only: Slurm has lost it. Job 8 has no partition: accounting has not heard of it.
    assert states(view, "a.x") == {0: "COMPLETED", 1: "RUNNING", 2: "PENDING"}
    assert states(view, "b.y") == {}
    assert states(view, "c.z") == {0: "CANCELLED"}
    assert view.jobs["a.x"]["7"][0].elapsed == 12
    assert view.jobs["a.x"]["7"][2].reason == "Resources"
    assert view.notes() == []


def test_an_id_is_worth_nothing_without_the_name() -> None:
    view = answering(sacct="7_0|COMPLETED|0:0|12|htc|c1|foreign\n", squeue="7_0|RUNNING|None||foreign\n").look(
        ["a.x"], 0.0
    )
    assert states(view, "a.x") == {}


def test_a_job_asked_for_by_its_id_counts_with_its_name_only() -> None:
    slurm = answering(
        sacct="7_[0-1]|CANCELLED by 0|0:0|0|htc|None assigned|a.x\n8_0|FAILED|1:0|1|htc|c1|foreign\n", squeue=""
    )
    view = slurm.look_by_id({"a.x": ["7"], "b.y": ["8"]}, 0.0)
    assert view.jobs.keys() == {"a.x"}
    assert states(view, "a.x") == {0: "CANCELLED", 1: "CANCELLED"}


@pytest.mark.parametrize(
    ("key", "indices"),
    [
        ("7_[0-20:2%3]", list(range(0, 21, 2))),
        ("7_[1,4-6%2]", [1, 4, 5, 6]),
        ("7_3", [3]),
        ("7", [0]),
        ("7_[0-9999]", list(range(10_000))),
    ],
)
def test_arrays_as_squeue_writes_them(key: str, indices: list[int]) -> None:
    view = answering(squeue=f"{key}|PENDING|Priority||a.x\n", sacct="").look(["a.x"], 0.0)
    assert list(states(view, "a.x")) == indices


def test_lines_that_differ_in_their_indices_only() -> None:
    lines = [f"7_{index}|{'FAILED' if index % 2 else 'COMPLETED'}|0:0|12|htc|c1|a.x\n" for index in range(6)]
    view = answering(sacct="".join([*lines, "8_0|FAILED|0:0|12|htc|c1|a.x\n"]), squeue="").look(["a.x"], 0.0)
    assert {index: each.state for index, each in view.jobs["a.x"]["7"].items()} == {
        0: "COMPLETED", 1: "FAILED", 2: "COMPLETED", 3: "FAILED", 4: "COMPLETED", 5: "FAILED",
    }  # fmt: skip
    assert {index: each.job_id for index, each in view.jobs["a.x"]["8"].items()} == {0: "8"}


def test_lines_without_a_job_id_tell_of_no_job() -> None:
    view = answering(sacct="|FAILED|0:0|12|htc|c1|a.x\n", squeue="\n_|PENDING|None||a.x\n").look(["a.x"], 0.0)
    assert view.jobs == {}


def test_one_name_with_two_ids() -> None:
    view = answering(squeue="7|PENDING|None||a.x\n9|RUNNING|None||a.x\n", sacct="").look(["a.x"], 0.0)
    assert set(view.jobs["a.x"]) == {"7", "9"}


@pytest.mark.parametrize(
    ("answer", "note", "unaccounted"),
    [
        (NotInstalled("x"), "sacct: no such command here", True),
        (Completed(127, "", "env: 'sacct': No such file or directory"), "sacct: no such command here", True),
        (NoAnswer("x", "retrying"), "sacct: gave no answer within 30 s: retrying", False),
        (Completed(1, "", "sacct: error: Problem talking to the database"), "Problem talking to the database", False),
        (Completed(0, "", "sacct: error: slurm_persist_conn_open_without_init: failed"), "could not be asked", False),
    ],
)
def test_without_accounting_the_queue_still_tells(answer: Completed | Exception, note: str, unaccounted: bool) -> None:
    view = answering(squeue="7|NODE_FAIL|NodeDown|c[1-2]|a.x\n", sacct=answer).look(["a.x"], 0.0)
    assert states(view, "a.x") == {0: "NODE_FAIL"}
    assert view.jobs["a.x"]["7"][0].nodes == "c[1-2]"
    assert view.queue is None
    assert view.accounting is not None
    assert note in view.accounting
    assert view.unaccounted is unaccounted


def test_without_the_queue_accounting_s_word_counts() -> None:
    view = answering(sacct="7_1|RUNNING|0:0|5|htc|c1|a.x\n").look(["a.x"], 0.0)
    assert states(view, "a.x") == {1: "RUNNING"}
    assert view.queue == "squeue could not be asked: down"


@pytest.mark.parametrize(
    ("out", "job_id"),
    [
        ("42\n", "42"),
        ("42;sol\n", "42"),
        ("job 424242 checked by site policy\n17\n", "17"),
        ("Hello 9\n\n17;c\n", "17"),
    ],
)
def test_the_job_id_is_the_last_word_of_a_parsable_answer(out: str, job_id: str) -> None:
    assert answering(sbatch=out).sbatch(Path("s"), [], [], Path()) == job_id


@pytest.mark.parametrize(
    "message",
    [
        "sbatch: error: invalid partition specified: nosuch\nsbatch: error: Batch job submission failed: Invalid partition name specified",
        "sbatch: error: Batch job submission failed: Invalid qos specification",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
        "sbatch: error: Batch job submission failed: Pathname of a file, directory or other parameter too long",
        "sbatch: unrecognized option '--nosuch'",
        "sbatch: error: Unable to open file x",
        "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
        "sbatch: error: Batch job submission failed: Access/permission denied",
    ],
)
def test_what_sbatch_plainly_refuses(message: str) -> None:
    with pytest.raises(Refused):
        answering(sbatch=Completed(1, "", message)).sbatch(Path("s"), [], [], Path())


@pytest.mark.parametrize(
    "answer",
    [
        Completed(1, "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"),
        Completed(
            1, "", "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
        ),
        Completed(1, "", "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received"),
        Completed(1, "", "sbatch: error: Batch job submission failed: Resource temporarily unavailable"),
        Completed(1, "", "sbatch: error: Batch job submission failed: Unexpected message received"),
        Completed(1, "", "sbatch: error: Batch job submission failed: Transport endpoint is not connected: connection"),
        Completed(1, "", ""),
        Completed(-9, "", "Killed"),
        Completed(1, "", "something that nobody has ever read"),
        Completed(0, "", ""),
        Completed(0, "Submitted, thank you\n", ""),
        Completed(124, "", "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"),
        NoAnswer("sbatch: gave no answer within 130 s"),
    ],
)
def test_whatever_else_it_says_the_job_may_have_been_taken(answer: Completed | Exception) -> None:
    with pytest.raises(Unconfirmed):
        answering(sbatch=answer).sbatch(Path("s"), [], [], Path())


@pytest.mark.parametrize("key", ["--user=victim", "7_", "7_[0-3]", "7 8", "", "x"])
def test_scancel_gets_nothing_but_ids(key: str) -> None:
    with pytest.raises(HpcrlError, match="is not the id of a Slurm job"):
        answering(scancel="").cancel([key])


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("QOSMaxJobsPerUserLimit", "it starts when one of them ends"),
        ("AssocGrpBillingMinutes", "the budget of your account is used up"),
        ("QOSGrpCPURunMinutesLimit", "allows no more"),
        ("AssocMaxJobsLimit", "allows no more jobs to you at once"),
        ("QOSGrpGRES", "allows no more"),
        ("ReqNodeNotAvail, UnavailableNodes:c[1-2]", "in maintenance"),
        ("DependencyNeverSatisfied", "hpcrl cancel"),
        ("job requeued in held state", "Slurm holds it: scontrol release JOB"),
        ("job_requeued_in_held_state", "Slurm holds it: scontrol release JOB"),
        ("launch failed requeued held", "run `hpcrl submit`, or scontrol release JOB"),
        ("None", "Slurm has not looked at it yet"),
        ("SomethingNew", "SomethingNew"),
    ],
)
def test_why_a_job_waits_is_told_in_words(reason: str, words: str) -> None:
    assert words in explain(reason)


@pytest.mark.parametrize("reason", ["job requeued in held state", "launch failed requeued held", "JobHeldUser"])
def test_what_somebody_must_release_is_not_waited_for(reason: str) -> None:
    assert is_stuck(reason)
    assert not is_stuck("Priority")


def test_commands_that_are_not_there_or_hang() -> None:
    with pytest.raises(NotInstalled, match="no-such-program: no such command"):
        run_command(["no-such-program"])
    with pytest.raises(NoAnswer, match="sh: gave no answer within 0 s") as caught:
        run_command(["sh", "-c", "echo retrying >&2; exec sleep 5"], timeout=0.2)
    assert caught.value.words == "retrying"
