"""A plan that two users share, and a plan directory in which something else stands where a file should."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcrl.formats.attempts import ATTEMPTS, Start, end_attempt, take_attempt
from hpcrl.formats.lease import held_lease
from hpcrl.formats.ledger import FILE
from hpcrl.formats.plan import MANIFEST
from hpcrl.schedulers.slurm import scripts
from hpcrl.slurm.client import Slurm
from hpcrl.submit.selection import Choice
from hpcrl.submit.status import plan_status
from hpcrl.submit.submission import submit
from tests.builders import cells_of, command_study, planned
from tests.conftest import Shown
from tests.submit.test_submission import NONE, FakeSlurm, fake

__all__ = ["fake", "scripts"]  # imported here, since the users may not read everything
GROUP, FIRST, SECOND = 70_001, 70_002, 70_003


@pytest.fixture
def shared() -> Iterator[Path]:
    """Give a directory of a group, as a project has it: mode 2770, so that what is made in it is the group's too."""
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    path = Path(tempfile.mkdtemp(prefix="hs-", dir="/tmp"))
    os.chown(path, FIRST, GROUP)
    path.chmod(0o2770)
    yield path
    shutil.rmtree(path)


def as_user(user: int, umask: int, what: Callable[[], object]) -> str:
    """Do something in a process of another user; return what went wrong."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(GROUP)
            os.setuid(user)
            os.umask(umask)
            what()
        except BaseException:
            os.write(writing, traceback.format_exc()[-3000:].encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as file:
        return file.read().decode()


def planned_by_first(shared: Path, umask: int) -> Path:
    """Plan as root, since nobody else may read this repository everywhere, and give the plan to the first user."""
    before = os.umask(umask)
    try:
        plan = planned(shared / "plan", command_study(["true"], seeds=2), "sol")
    finally:
        os.umask(before)
    for path in (plan, *plan.rglob("*")):
        os.chown(path, FIRST, GROUP)
    return plan


def run_all(plan: Path, slurm: FakeSlurm) -> None:
    """Begin and end every cell, as the jobs of whoever submitted it."""
    for cell in cells_of(plan):
        start = Start(cell["id"], "1", 0, f"{os.getuid()}", "m")
        if take_attempt(plan, start, {}) is None:
            end_attempt(plan, start, "failed" if os.getuid() == FIRST else "completed")


def test_two_users_share_a_plan(shared: Path, fake: FakeSlurm) -> None:
    plan = planned_by_first(shared, 0o002)

    def first() -> None:
        submit(plan, "slurm", Slurm(fake), NONE, lambda *progress: None)
        run_all(plan, fake)

    def second() -> None:
        done = submit(plan, "slurm", Slurm(fake), NONE, lambda *progress: None, Choice(here=True))
        assert done.tasks == 2
        assert plan_status(plan, Slurm(fake)).counts()
        for cell in cells_of(plan):
            assert take_attempt(plan, Start(cell["id"], "2", 0, "2", "m"), {}) is None

    assert as_user(FIRST, 0o002, first) == ""
    for path in (plan, *plan.rglob("*")):
        mode = path.stat().st_mode
        assert mode & stat.S_IWGRP, f"{path}: {stat.filemode(mode)}"
        assert path.stat().st_gid == GROUP, path
    assert as_user(SECOND, 0o002, second) == ""
    assert len(list((plan / ATTEMPTS).glob("*.2-0"))) == 2


def test_a_plan_that_is_not_shared_says_where_and_what_to_do(shared: Path, fake: FakeSlurm) -> None:
    plan = planned_by_first(shared, 0o022)

    def first() -> None:
        submit(plan, "slurm", Slurm(fake), NONE, lambda *progress: None)

    assert as_user(FIRST, 0o022, first) == ""
    told = as_user(SECOND, 0o022, lambda: submit(plan, "slurm", Slurm(fake), NONE, lambda *progress: None))
    assert "UsageError" in told
    assert f"cannot be written by you ({plan}/lease: Permission denied)" in told
    assert "is a plan of " in told
    assert "ask for write permission for your group" in told


@pytest.mark.parametrize("name", [MANIFEST, "cells.jsonl", FILE, "lease/000099", "submissions/hpcrl-12345678-1-abcdef"])
def test_a_fifo_in_the_plan_makes_nobody_wait(
    name: str, tmp_path: Path, hpcrl: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path / "plan", command_study(["true"]))
    monkeypatch.setenv("HPCRL_ENVIRONMENTS", str(tmp_path / "e"))
    path = plan / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    watchdog = threading.Timer(60, os.kill, (os.getpid(), signal.SIGINT))  # opening a FIFO would wait for ever
    watchdog.start()
    for verb in ("status", "cancel"):
        shown = hpcrl(verb, plan)
        assert "Traceback" not in shown.err
        assert shown.code in (0, 1, 2)
        if name == MANIFEST:
            assert shown.code == 2
            assert f"{path}: cannot be read: it is not a regular file" in shown.err
    with held_lease(plan, "submit", lambda text: None):
        pass
    watchdog.cancel()
