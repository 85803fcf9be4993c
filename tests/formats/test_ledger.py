from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.ledger import FILE, Ledger
from hpcrl.formats.plan import format_tasks, parse_tasks


@given(st.sets(st.integers(0, 10_000)))
def test_tasks_in_slurm_s_syntax_round_trip(tasks: set[int]) -> None:
    assert parse_tasks(format_tasks(tasks)) == sorted(tasks)


def test_slurm_s_syntax() -> None:
    assert format_tasks([7, 0, 1, 2, 2]) == "0-2,7"


def test_an_intent_becomes_a_submission(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, create=True)
    claimed = ledger.claim("job", [0, 1, 2], "slurm", {1})
    assert claimed is not None
    assert claimed.tasks == (0, 2)
    assert claimed.state == "intent"
    ledger.submitted(claimed.token, "42")
    (found,) = Ledger(tmp_path).submissions()
    assert (found.state, found.job_id) == ("submitted", "42")


def test_two_processes_do_not_claim_the_same_tasks(tmp_path: Path) -> None:
    first, second = Ledger(tmp_path, create=True), Ledger(tmp_path)
    assert first.claim("job", [0, 1], "slurm", set()) is not None
    assert second.claim("job", [0, 1], "slurm", set()) is None
    claimed = second.claim("job", [0, 1, 2], "slurm", set())
    assert claimed is not None
    assert claimed.tasks == (2,)


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
    with pytest.raises(HpcrlError, match="cannot be"):
        Ledger(tmp_path)


def test_another_version(tmp_path: Path) -> None:
    Ledger(tmp_path, create=True).close()
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE meta SET version = 9")
    with pytest.raises(UsageError, match="ledger format 9"):
        Ledger(tmp_path)
