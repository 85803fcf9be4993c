"""The ledger: which attempt of which cells is which Slurm job. One SQLite file in the plan directory.

A submission is written down as an *intent* before sbatch is called, in the ledger and in a file of its own
(:mod:`hpcrl.formats.submission`), and confirmed after it. So a crash between the two is resolved by asking Slurm for
the token in the job's name, and a lost ledger is rebuilt from those files. WAL is off: plans live on NFS and Lustre.
SQLite's journal has the name of its file, so a process that still writes to a removed ledger would meddle with the
journal of the new one: whoever opens, reads or writes a ledger holds the plan's directory for that moment.
Submissions are ordered by their number, never by a clock.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.plan import format_tasks, parse_tasks
from hpcrl.formats.submission import Submission, from_facts, plan_prefix, with_state, write_submission

VERSION = 3
FILE = "ledger.sqlite"
# How long another process may hold the file. On a shared file system the lock of a host that died can stay.
BUSY_SECONDS = 20.0
_POLL_SECONDS = 0.01
_REPLACED = "was removed or replaced meanwhile"
_SCHEMA = """
CREATE TABLE meta (version INTEGER NOT NULL, directory TEXT NOT NULL);
CREATE TABLE submissions (
    token TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE, facts TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('intent', 'submitted', 'refused', 'gone', 'elsewhere')),
    job_ids TEXT NOT NULL DEFAULT '', message TEXT
);
CREATE TABLE local_tasks (
    token TEXT NOT NULL, task INTEGER NOT NULL, state TEXT NOT NULL, exit_code INTEGER, started REAL, ended REAL,
    PRIMARY KEY (token, task)
);
CREATE TABLE cancelled (token TEXT NOT NULL, tasks TEXT NOT NULL);
"""


class DamagedLedger(HpcrlError):
    """The file is not a valid ledger: `hpcrl submit` rebuilds it.

    Args:
        what: the file, and what is wrong with it.
        first: what must be done before that.
    """

    def __init__(self, what: str, first: str = "") -> None:
        super().__init__(f"{what}: {first}`hpcrl submit` rebuilds it from submissions/ and Slurm")
        self.what = what


@dataclass(frozen=True)
class LocalTask:
    """How far the local executor is with one task."""

    token: str
    task: int
    state: str
    exit_code: int | None
    started: float | None
    ended: float | None


class Ledger:
    """The open ledger of a plan directory."""

    def __init__(self, directory: Path, create: bool = False) -> None:
        """Open the ledger.

        Raises:
            UsageError: there is none and `create` is off, or another version of hpcrl made it.
            DamagedLedger: the file is empty, truncated or not a ledger.
            HpcrlError: it cannot be opened.
        """
        self.path = directory / FILE
        self._plan = directory
        with _alone(directory):
            self._open(create)

    def _open(self, create: bool) -> None:
        about = _look_at(self.path)
        if about is None:
            if not create:
                raise UsageError(f"{self._plan}: nothing was submitted yet: run `hpcrl submit`")
        else:  # SQLite would wait for a FIFO and follow a link
            if not stat.S_ISREG(about.st_mode):
                raise UsageError(f"{self.path}: is not a regular file: move it away, and `hpcrl submit` rebuilds it")
            if about.st_size == 0 and not create:
                raise DamagedLedger(f"{self.path}: is empty")
        try:
            if about is None:  # SQLite would create it with a mode that a group cannot write, whatever the umask
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
            self._database = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            self._inode = self.path.stat().st_ino
            version = self._version(create)
        except sqlite3.OperationalError as error:
            raise HpcrlError(
                f"{self.path}: cannot be opened: {_why_closed(self.path) or f'{error}{_hint(error)}'}"
            ) from None
        except OSError as error:
            if about:
                raise DamagedLedger(f"{self.path}: {_REPLACED}") from None
            raise HpcrlError(f"{self.path}: cannot be created: {error.strerror}") from None
        except (sqlite3.Error, TypeError) as error:
            raise DamagedLedger(f"{self.path}: is damaged ({error})") from None
        if version != VERSION:
            raise UsageError(
                f"{self.path}: ledger format {version}, but this hpcrl reads format {VERSION}: move the file away, and `hpcrl submit` "
                "rebuilds it from submissions/ and Slurm; or use the hpcrl that made it"
            )

    def _version(self, create: bool) -> int:
        known = self._database.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone()
        if not known:
            if not create:
                raise TypeError("it has no tables")
            with self._writing():
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    self._database.execute(statement)
                self._database.execute("INSERT INTO meta VALUES (?, ?)", (VERSION, str(self._plan.resolve())))
        version = self._database.execute("SELECT version FROM meta").fetchone()[0]
        # Older formats had other tables; a file cut short fails here, before anything is believed.
        if version == VERSION:
            self._database.execute("SELECT count(*), max(length(facts)) FROM submissions").fetchone()
            self._database.execute("SELECT count(*) FROM local_tasks").fetchone()
        return int(version)

    def close(self) -> None:
        self._database.close()

    def is_in_place(self) -> bool:
        """Tell whether the file that is open is still the one of that name."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def _check_place(self) -> None:
        if not self.is_in_place():
            raise DamagedLedger(f"{self.path}: {_REPLACED}")

    def _read(self, query: str) -> list[tuple[Any, ...]]:
        try:
            with _alone(self._plan):
                self._check_place()
                return self._database.execute(query).fetchall()
        except sqlite3.DatabaseError as error:
            if hint := _hint(error):
                raise HpcrlError(f"{self.path}: cannot be read: {error}{hint}") from None
            raise DamagedLedger(f"{self.path}: is damaged ({error})", "move it away, and ") from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _alone(self._plan):
            self._check_place()
            with self._writing():
                yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            self._check_place()
            raise HpcrlError(f"{self.path}: cannot be written: {error}{_hint(error)}") from None
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    @property
    def directory(self) -> str:
        """The plan's directory at its first submission."""
        return str(self._read("SELECT directory FROM meta")[0][0])

    def moved(self, directory: str) -> None:
        """Note that the plan was renamed."""
        with self._transaction():
            self._database.execute("UPDATE meta SET directory = ?", (directory,))

    def intend(self, submission: Submission) -> Submission:
        """Write down the intent to submit, with a number and a token of its own, and the file that grants its attempts.

        The caller holds the plan's lease; two intents with one number are refused all the same.
        """
        with self._transaction():
            (last,) = self._database.execute("SELECT coalesce(max(number), 0) FROM submissions").fetchone()
            token = f"{plan_prefix(submission.plan)}{last + 1}-{secrets.token_hex(3)}"
            made = replace(submission, token=token, number=last + 1, at=time.time())
            self._insert(made)
        write_submission(self._plan, made)
        return made

    def adopt(self, submission: Submission) -> None:
        """Add a submission of a lost ledger, under the next free number if its own is taken."""
        with self._transaction():
            (last,) = self._database.execute("SELECT coalesce(max(number), 0) FROM submissions").fetchone()
            self._insert(replace(submission, number=max(submission.number, last + 1)))

    def _insert(self, made: Submission) -> None:
        self._database.execute(
            "INSERT INTO submissions (token, number, facts, state, job_ids) VALUES (?, ?, ?, ?, ?)",
            (made.token, made.number, made.facts(), made.state, " ".join(made.job_ids)),
        )

    def submitted(self, token: str, *job_ids: str) -> None:
        self._set(token, "submitted", " ".join(job_ids), None)

    def take_up(self, token: str, process: int) -> bool:
        """Note that a local queue has a submission; return False if it was given up as gone."""
        with self._transaction():
            changed = self._database.execute(
                "UPDATE submissions SET state = 'submitted', job_ids = ? WHERE token = ? AND state != 'gone'",
                (str(process), token),
            )
        return changed.rowcount == 1

    def refused(self, token: str, message: str) -> None:
        self._set(token, "refused", "", message)

    def gone(self, token: str, message: str) -> None:
        """Note that a submission never reached the scheduler. hpcrl still asks for it, because it may appear later."""
        with self._transaction():
            self._database.execute(
                "UPDATE submissions SET state = 'gone', message = ? WHERE token = ? AND state = 'intent'",
                (message, token),
            )

    def leave_to(self, directory: str) -> None:
        """Note that another copy of the plan continues with all submissions so far."""
        message = f"it was submitted from {directory}, of which this plan is a copy"
        with self._transaction():
            self._database.execute(
                "UPDATE submissions SET state = 'elsewhere', message = ? WHERE state != 'refused'", (message,)
            )

    def _set(self, token: str, state: str, job_ids: str, message: str | None) -> None:
        with self._transaction():
            self._database.execute(
                "UPDATE submissions SET state = ?, job_ids = ?, message = ? WHERE token = ?",
                (state, job_ids, message, token),
            )

    def submissions(self) -> list[Submission]:
        """Return every submission, oldest first.

        Raises:
            DamagedLedger: the file was cut short.
        """
        rows = self._read("SELECT facts, state, job_ids, message FROM submissions ORDER BY number")
        try:
            return [
                with_state(from_facts(facts, self.path), state, tuple(job_ids.split()), message)
                for facts, state, job_ids, message in rows
            ]
        except UsageError:
            what = "a submission in it cannot be read"
            raise DamagedLedger(f"{self.path}: is damaged ({what})", "move it away, and ") from None

    def taken(self) -> list[Submission]:
        """Return every submission that was not refused, oldest first: the scheduler has, had or may have it."""
        return [submission for submission in self.submissions() if submission.state != "refused"]

    def cancel(self, token: str, tasks: Iterable[int]) -> int:
        """Note which tasks the user cancels: Slurm forgets a waiting array task without a trace. Return the note's number."""
        with self._transaction():
            return int(
                self._database.execute("INSERT INTO cancelled VALUES (?, ?)", (token, format_tasks(tasks))).lastrowid
                or 0
            )

    def take_back(self, notes: Iterable[int]) -> None:
        """Remove notes of :meth:`cancel`: the scheduler did not do it."""
        with self._transaction():
            self._database.executemany("DELETE FROM cancelled WHERE rowid = ?", [(note,) for note in notes])

    def cancelled(self) -> set[tuple[str, int]]:
        rows = self._read("SELECT token, tasks FROM cancelled")
        return {(token, task) for token, tasks in rows for task in parse_tasks(tasks)}

    def local_start(self, token: str, task: int) -> None:
        """Note that a task runs; a wish to cancel it that came meanwhile stays."""
        with self._transaction():
            self._database.execute(
                "INSERT INTO local_tasks VALUES (?, ?, 'RUNNING', NULL, ?, NULL) ON CONFLICT (token, task) "
                "DO UPDATE SET started = excluded.started",
                (token, task, time.time()),
            )

    def local_cancel(self, token: str, task: int) -> None:
        """Ask the local queue to end a task that waits or runs; one that has ended stays as it ended."""
        with self._transaction():
            self._database.execute(
                "INSERT INTO local_tasks VALUES (?, ?, 'CANCELLING', NULL, NULL, NULL) ON CONFLICT (token, task) "
                "DO UPDATE SET state = 'CANCELLING' WHERE state = 'RUNNING'",
                (token, task),
            )

    def local_end(self, token: str, task: int, state: str, exit_code: int | None) -> None:
        with self._transaction():
            self._database.execute(
                "INSERT INTO local_tasks VALUES (?, ?, ?, ?, NULL, ?) ON CONFLICT (token, task) "
                "DO UPDATE SET state = excluded.state, exit_code = excluded.exit_code, ended = excluded.ended",
                (token, task, state, exit_code, time.time()),
            )

    def local_tasks(self) -> list[LocalTask]:
        rows = self._read("SELECT token, task, state, exit_code, started, ended FROM local_tasks")
        return [LocalTask(*row) for row in rows]


def _look_at(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


@contextmanager
def _alone(plan: Path) -> Iterator[None]:
    """Hold a plan's directory, to be the only one who writes or creates its ledger.

    After `BUSY_SECONDS`, and where such a lock cannot be had, it goes on without: SQLite's own lock remains.
    """
    try:
        handle = os.open(plan, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # no such plan, or one that this user may not list: what follows says so
        yield
        return
    try:
        deadline = time.monotonic() + BUSY_SECONDS
        while time.monotonic() < deadline:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_POLL_SECONDS)
            except OSError:
                break
        yield
    finally:
        os.close(handle)


def _why_closed(path: Path) -> str | None:
    """Return the reason why the file cannot be opened, if it is known."""
    if os.access(path, os.R_OK | os.W_OK):
        return None
    try:
        owner = path.owner()
    except FileNotFoundError:
        return "it was removed meanwhile"
    except KeyError:  # a user that this machine does not know
        owner = "its owner"
    return f"you may not read and write it: ask {owner} to share the plan with your group (docs/submission.md)"


def _hint(error: sqlite3.Error) -> str:
    text = str(error)
    if "locked" in text:
        return ": another hpcrl uses it, or a host died while it used it; if no hpcrl runs, copy the file over itself (cp, then mv)"
    if "readonly" in text:
        return ": the directory or its file system is read-only for you"
    if "full" in text:
        return ": the disk is full: free some space and run `hpcrl submit` again, which asks Slurm for the jobs that could not be recorded"
    return ""
