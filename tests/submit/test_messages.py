"""What a user is told of a plan that somebody changed, took away in part, or cannot use as it is."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrl.formats.ledger import FILE
from hpcrl.formats.plan import MANIFEST
from tests.builders import cells_of, command_study, planned
from tests.conftest import Shown
from tests.submit.test_local import ready, states, until

Call = Callable[..., Shown]
Ready = Callable[[dict[str, Any]], Path]

__all__ = ["ready"]


@pytest.fixture
def done(hpcrl: Call, ready: Ready) -> Path:
    """A plan of two cells that have completed on this machine."""
    plan = ready(command_study(["true"], seeds=2))
    assert hpcrl("submit", plan).code == 0
    until(lambda: states(hpcrl, plan) == {"COMPLETED": 2})
    return plan


@pytest.mark.slow
def test_status_says_what_is_gone_or_was_changed(hpcrl: Call, done: Path, tmp_path: Path) -> None:
    told = hpcrl("status", done)
    assert told.err == ""
    cells = (done / "cells.jsonl").read_text()
    (done / "cells.jsonl").write_text(cells + "\n")
    assert "cells.jsonl: was changed after the plan was made: restore it" in hpcrl("status", done).err
    (done / "cells.jsonl").write_text(cells)
    shutil.rmtree(done / "attempts")
    assert f"{done}/attempts: is gone: cells that completed may be shown as failed" in hpcrl("status", done).err
    shutil.rmtree(done / "records")
    assert f"{done}/records: is gone" in hpcrl("status", done).err
    shutil.rmtree(done / "logs")
    cell = told.out.split()[5]
    told = hpcrl("logs", done, "--cell", cell)
    assert f"the log of cell {cell} is gone (" in told.err, told


@pytest.mark.slow
def test_a_ledger_that_cannot_be_used(hpcrl: Call, done: Path) -> None:
    (done / FILE).write_bytes(b"rubbish" * 1000)
    # SQLite's own words depend on whether there is a journal of a process that has just ended.
    damaged = rf"{FILE}: is damaged \((file is not a database|database disk image is malformed)\)"
    assert re.search(f"{re.escape(str(done))}/{damaged}: `hpcrl submit` rebuilds it", hpcrl("status", done).err)
    told = hpcrl("submit", done).err
    assert re.search(rf"{damaged}: it is rebuilt \(the old one is kept as {FILE}.damaged-1\)", told)
    assert "`hpcrl submit` rebuilds" not in told
    (done / FILE).unlink()
    (done / FILE).mkdir()
    assert (
        f"{done / FILE}: is not a regular file: move it away, and `hpcrl submit` rebuilds it"
        in hpcrl("status", done).err
    )


@pytest.mark.slow
def test_somebody_holds_the_ledger(hpcrl: Call, done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcrl.cli.status.PATIENCE", 0.2)
    monkeypatch.setattr("hpcrl.formats.ledger.BUSY_SECONDS", 1.0)
    held = sqlite3.connect(done / FILE, isolation_level=None)
    held.execute("BEGIN EXCLUSIVE")
    told = hpcrl("status", done).err
    assert f"no answer for 0 s: Slurm is busy, or another hpcrl uses the ledger of {done}; still waiting" in told
    assert "database is locked: another hpcrl uses it, or a host died" in told
    held.close()


def test_what_is_no_plan(hpcrl: Call, tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_study(["true"]))
    assert f"{plan}/plan.json: is not a plan directory (it is a file)" in hpcrl("status", plan / MANIFEST).err
    (plan / MANIFEST).write_text("[]")
    assert f"{plan / MANIFEST}: is not a plan's manifest: make the plan again" in hpcrl("status", plan).err
    assert "(no plan.json)" in hpcrl("status", tmp_path).err


@pytest.mark.parametrize("notify", ["", "  "])
def test_an_empty_notify(hpcrl: Call, tmp_path: Path, notify: str) -> None:
    told = hpcrl("plan", "--cluster", "workstation", "--notify", notify, "-o", tmp_path / "p")
    assert told.code == 2
    assert "--notify: expected an http(s) URL, or a command" in told.err


def test_nothing_is_submitted_that_must_fail(hpcrl: Call, ready: Ready, tmp_path: Path) -> None:
    plan = ready(command_study(["true"], notify=["no-such-command", "x"]))
    told = hpcrl("submit", plan)
    assert told.code == 2
    assert "notify: no-such-command: no such command on this machine, and the message would be lost" in told.err
    shutil.rmtree(tmp_path / "environments")
    told = hpcrl("submit", plan)
    assert told.code == 1
    assert ": not built, and no job of this plan builds them: run `hpcrl env create --plan " in told.err
    assert "environments numpy-cpu-" in told.err
    assert f"run `hpcrl env create --plan {plan}` first" in told.err
    assert not (plan / FILE).exists()


def test_environments_of_other_cells_need_not_be_built(hpcrl: Call, ready: Ready, tmp_path: Path) -> None:
    plan = ready(command_study(["true"], axes={"framework": ["numpy", "torch"]}))
    cells = {cell["config"]["framework"]: cell for cell in cells_of(plan)}
    shutil.rmtree(tmp_path / "environments" / cells["torch"]["environment"])
    told = hpcrl("submit", plan, "--cell", cells["torch"]["id"])
    assert told.code == 1
    assert "environments torch-cpu-" in told.err and "not built" in told.err
    assert not (plan / FILE).exists()
    assert hpcrl("submit", plan, "--cell", cells["numpy"]["id"]).code == 0
    until(lambda: states(hpcrl, plan) == {"COMPLETED": 1, "NOT SUBMITTED": 1})
