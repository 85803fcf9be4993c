from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.ledger import FILE, DamagedLedger, Ledger
from hpcrl.formats.plan import format_tasks, parse_tasks
from hpcrl.formats.submission import Submission, read_submissions


def submission(granted: dict[int, str]) -> Submission:
    return Submission("", 0, "0123abcd4567", "job", "slurm", granted)


@given(st.sets(st.integers(0, 10_000)))
def test_tasks_in_slurm_s_syntax_round_trip(tasks: set[int]) -> None:
    assert parse_tasks(format_tasks(tasks)) == sorted(tasks)


def test_slurm_s_syntax() -> None:
    assert format_tasks([7, 0, 1, 2, 2]) == "0-2,7"


def test_an_intent_becomes_a_submission(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, create=True)
    made = ledger.intend(submission({1: "0,2"}))
    assert (made.state, made.number, made.entries) == ("intent", 1, [(0, 1), (2, 1)])
    assert made.token.startswith("hpcrl-0123abcd-1-")
    ledger.submitted(made.token, "42", "43")
    (found,) = Ledger(tmp_path).submissions()
    assert (found.state, found.job_ids, found.entries) == ("submitted", ("42", "43"), made.entries)


def test_submissions_are_ordered_by_number_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path, create=True)
    for now in (5000.0, 100.0, 3000.0):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        ledger.intend(submission({1: "0"}))
    assert [each.number for each in ledger.submissions()] == [1, 2, 3]
    assert [each.at for each in ledger.submissions()] == [5000, 100, 3000]


def test_a_lost_ledger_is_made_anew_from_the_submissions_files(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, create=True)
    made = [ledger.intend(submission({1: "0-4", 2: "7,9"})), ledger.intend(submission({3: "1"}))]
    ledger.close()
    (tmp_path / FILE).unlink()
    again = Ledger(tmp_path, create=True)
    for each in read_submissions(tmp_path):
        again.adopt(each)
    assert again.submissions() == made
    assert again.intend(submission({1: "0"})).number == 3


def test_an_interrupt_inside_a_transaction_is_no_fault(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, create=True)
    for commit in (False, True):
        with pytest.raises(KeyboardInterrupt), ledger._transaction():
            if commit:  # as when the interrupt comes just after the commit
                ledger._database.execute("COMMIT")
            raise KeyboardInterrupt
    assert ledger.submissions() == []
    ledger.intend(submission({1: "0"}))


@pytest.mark.parametrize("started_first", [True, False])
def test_a_wish_to_cancel_is_never_lost(tmp_path: Path, started_first: bool) -> None:
    ledger = Ledger(tmp_path, create=True)
    steps = [lambda: ledger.local_start("t", 0), lambda: ledger.local_cancel("t", 0)]
    for step in steps if started_first else reversed(steps):
        step()
    (found,) = ledger.local_tasks()
    assert found.state == "CANCELLING"
    assert found.started is not None


def test_what_has_ended_cannot_be_cancelled(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, create=True)
    ledger.local_start("t", 0)
    ledger.local_end("t", 0, "COMPLETED", 0)
    ledger.local_cancel("t", 0)
    (found,) = ledger.local_tasks()
    assert found.state == "COMPLETED"


def test_no_ledger_yet_or_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing was submitted yet"):
        Ledger(tmp_path)
    (tmp_path / FILE).write_bytes(b"not a database at all, but long enough to be read as one")
    with pytest.raises(DamagedLedger, match=r"is damaged .*`hpcrl submit` rebuilds it"):
        Ledger(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 9000])
def test_a_truncated_ledger_is_damaged_at_any_length(tmp_path: Path, size: int) -> None:
    ledger = Ledger(tmp_path, create=True)
    for _ in range(40):
        ledger.intend(submission({1: "0-99"}))
    ledger.close()
    whole = (tmp_path / FILE).read_bytes()
    assert len(whole) > 9000
    (tmp_path / FILE).write_bytes(whole[:size])
    with pytest.raises(DamagedLedger):
        Ledger(tmp_path).submissions()


def test_a_ledger_that_another_host_has_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcrl.formats.ledger.BUSY_SECONDS", 0.1)
    holder = Ledger(tmp_path, create=True)
    other = Ledger(tmp_path)
    with (
        holder._transaction(),
        pytest.raises(HpcrlError, match="locked: another hpcrl uses it, or a host died while it used it"),
    ):
        other.submitted("hpcrl-x", "1")


def test_another_version(tmp_path: Path) -> None:
    Ledger(tmp_path, create=True).close()
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE meta SET version = 9")
    with pytest.raises(UsageError, match="ledger format 9"):
        Ledger(tmp_path)


def test_a_full_disk_says_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job may have been submitted: only its id could not be noted."""
    ledger = Ledger(tmp_path, create=True)
    made = ledger.intend(submission({1: "0"}))
    ledger._database.execute("PRAGMA max_page_count = 1")
    with pytest.raises(
        HpcrlError, match="the disk is full: free some space and run `hpcrl submit` again, which asks Slurm"
    ):
        ledger.gone(made.token, "x" * 1_000_000)


def test_a_row_that_is_damaged_says_what_to_do(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, create=True)
    ledger.intend(submission({1: "0"}))
    ledger._database.execute("UPDATE submissions SET facts = 'rubbish'")
    with pytest.raises(
        DamagedLedger, match=r"a submission in it cannot be read\): move it away, and `hpcrl submit` rebuilds"
    ):
        ledger.submissions()


def test_a_removed_ledger_is_neither_read_nor_written(tmp_path: Path) -> None:
    stale = Ledger(tmp_path, create=True)
    stale.path.unlink()
    with pytest.raises(DamagedLedger, match=r"was removed or replaced meanwhile: `hpcrl submit` rebuilds it"):
        stale.local_start("t", 0)
    fresh = Ledger(tmp_path, create=True)
    with pytest.raises(DamagedLedger, match="was removed or replaced meanwhile"):
        stale.local_tasks()
    assert fresh.local_tasks() == []


def _write_until_told(directory: Path, stop: Event) -> None:
    """Do as a local queue does: write and read, and open the ledger anew when it was replaced."""
    while not stop.is_set():
        with suppress(HpcrlError):
            ledger = Ledger(directory)
            while ledger.is_in_place() and not stop.is_set():
                ledger.local_start("queue", 0)
                ledger.local_tasks()


def test_a_process_that_has_a_lost_ledger_open_does_no_harm_to_the_new_one(tmp_path: Path) -> None:
    # Both have one name, and so has SQLite's journal: without the lock about every second of these failed (disk I/O error).
    Ledger(tmp_path, create=True)
    stop = get_context("fork").Event()
    writers = [get_context("fork").Process(target=_write_until_told, args=(tmp_path, stop)) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(30):
            (tmp_path / FILE).unlink()
            fresh = Ledger(tmp_path, create=True)
            for task in range(5):
                fresh.local_start("submit", task)
            assert [each.task for each in fresh.local_tasks() if each.token == "submit"] == [0, 1, 2, 3, 4]
            fresh.close()
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
