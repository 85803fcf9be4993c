"""The ledger: which attempt of which cells is which Slurm job. One SQLite file in the plan directory.

A submission is written down as an *intent* with a unique token before sbatch is called; the token is also the
job's comment. So a crash between the two is resolved by asking Slurm for the comment, and no cell is submitted
twice or forgotten. WAL is off: plans live on NFS and Lustre.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.plan import format_tasks, parse_tasks

VERSION = 1
FILE = "ledger.sqlite"
_SCHEMA = """
CREATE TABLE meta (version INTEGER NOT NULL);
CREATE TABLE submissions (
    token TEXT PRIMARY KEY, job TEXT NOT NULL, tasks TEXT NOT NULL, executor TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('intent', 'submitted', 'refused')),
    job_id TEXT, at REAL NOT NULL, message TEXT
);
CREATE TABLE local_tasks (
    token TEXT NOT NULL, task INTEGER NOT NULL, state TEXT NOT NULL, exit_code INTEGER, started REAL, ended REAL,
    PRIMARY KEY (token, task)
);
"""


@dataclass(frozen=True)
class Submission:
    """One sbatch call, or one hand-over to the local executor: `tasks` of one job of the plan."""

    token: str
    job: str
    tasks: tuple[int, ...]
    executor: str
    state: str
    job_id: str | None
    at: float
    message: str | None = None


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
            HpcrlError: it cannot be written.
        """
        self.path = directory / FILE
        if not create and not self.path.exists():
            raise UsageError(f"{directory}: nothing was submitted yet: run `hpcrl submit`")
        try:
            self._database = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
            with self._transaction():
                if not self._database.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        self._database.execute(statement)
                    self._database.execute("INSERT INTO meta VALUES (?)", (VERSION,))
                (version,) = self._database.execute("SELECT version FROM meta").fetchone()
        except sqlite3.Error as error:
            raise HpcrlError(f"{self.path}: cannot be opened: {error}") from None
        if version != VERSION:
            raise UsageError(f"{self.path}: ledger format {version}, but this hpcrl reads format {VERSION}")

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise HpcrlError(f"{self.path}: cannot be written: {error}") from None
        except BaseException:
            self._database.execute("ROLLBACK")
            raise

    def claim(self, job: str, tasks: list[int], executor: str, busy: set[int]) -> Submission | None:
        """Write down the intent to submit `tasks` of a job, less those in `busy` and those claimed meanwhile.

        Two processes that submit the same plan at once cannot both claim a task: what another process has
        claimed since `busy` was computed stands in the table, and is left out here under its lock.
        """
        with self._transaction():
            newer = {task for each in self._submissions("state = 'intent' AND job = ?", job) for task in each.tasks}
            free = [task for task in tasks if task not in busy and task not in newer]
            if not free:
                return None
            token = f"hpcrl-{secrets.token_hex(8)}"
            self._database.execute(
                "INSERT INTO submissions (token, job, tasks, executor, state, at) VALUES (?, ?, ?, ?, 'intent', ?)",
                (token, job, format_tasks(free), executor, time.time()),
            )
            return next(self._submissions("token = ?", token))

    def submitted(self, token: str, job_id: str) -> None:
        with self._transaction():
            self._database.execute(
                "UPDATE submissions SET state = 'submitted', job_id = ? WHERE token = ?", (job_id, token)
            )

    def refused(self, token: str, message: str) -> None:
        with self._transaction():
            self._database.execute(
                "UPDATE submissions SET state = 'refused', message = ? WHERE token = ?", (message, token)
            )

    def submissions(self) -> list[Submission]:
        """Return every submission, oldest first."""
        return list(self._submissions("1"))

    def _submissions(self, where: str, *values: str) -> Iterator[Submission]:
        query = f"SELECT token, job, tasks, executor, state, job_id, at, message FROM submissions WHERE {where} ORDER BY at, rowid"
        for token, job, tasks, executor, state, job_id, at, message in self._database.execute(query, values).fetchall():
            yield Submission(token, job, tuple(parse_tasks(tasks)), executor, state, job_id, at, message)

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
        rows = self._database.execute("SELECT token, task, state, exit_code, started, ended FROM local_tasks")
        return [LocalTask(*row) for row in rows.fetchall()]
