"""What the files of a plan say about its attempts: the fence, the ledger, the records. They are read only when asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from hpcrl.formats.attempts import COMPLETED as OUTCOME_COMPLETED
from hpcrl.formats.attempts import Progress, time_of_start
from hpcrl.formats.files import server_time
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import LOGS, RECORDS
from hpcrl.formats.submission import SUBMISSIONS, Submission
from hpcrl.slurm.client import Slurm, View

LOST_SECONDS = 60.0
BREATHES = "its job cannot be found, but its record was written a moment ago: it may still run; look again in a minute"


@dataclass(frozen=True)
class Evidence:
    """The evidence about the attempts of a plan, with the answers of its schedulers (`view`).

    Args:
        ids: the cell of each task, by job.
    """

    directory: Path
    ledger: Ledger | None
    progress: Progress
    view: View
    slurm: Slurm
    ids: Mapping[str, Sequence[str]]

    @cached_property
    def has_logs(self) -> bool:
        return (self.directory / LOGS).is_dir()

    @cached_property
    def cancelled(self) -> set[tuple[str, int]]:
        return self.ledger.cancelled() if self.ledger else set()

    @cached_property
    def breathing(self) -> set[str]:
        """The cells whose record was written a moment ago: they run, even if Slurm does not know them."""
        return breathing(self.directory, self.now)

    @cached_property
    def now(self) -> float:
        return now(self.directory)

    def is_new(self, submission: Submission) -> bool:
        return is_new(self.directory, submission, self.now)

    def has_just_begun(self, unit: str, attempt: int) -> bool:
        """Tell whether an attempt was taken a moment ago: its record is written seconds later."""
        try:
            return self.now - time_of_start(self.directory, unit, attempt) < LOST_SECONDS
        except OSError:
            return False

    def has_begun_any(self, submission: Submission, index: int) -> bool:
        """Tell whether an array task has begun any of its cells."""
        names = self.ids[submission.job]
        return any(self.progress.has_begun(names[task], attempt) for task, attempt in submission.entries_at(index))

    def has_footer(self, unit: str) -> bool:
        """Read the records of cells that have ended without a file in ``attempts/``, which is rare."""
        return unit in self._completed

    @cached_property
    def _completed(self) -> set[str]:
        return _completed_by_record(self.directory)

    def memory_share(self, unit: str) -> float:
        """Return the used share of its requested memory before a cell ended without a footer."""
        from hpcrl.formats.record import SAMPLE_COLUMNS, RecordError, read_frames

        share = 0.0
        for path in islice((self.directory / RECORDS).glob(f"{unit}.*.rec"), 20):
            asked = 0.0
            try:
                for frame in read_frames(path, frozenset({"header", "samples"})):
                    if frame.kind == "header":
                        resources = frame.payload["resources"]
                        asked = resources["memory"] * 2.0**20 * resources.get("tasks", 1) / resources.get("nodes", 1)
                    elif asked:
                        last = dict(zip(SAMPLE_COLUMNS, frame.payload["table"][-1], strict=True))
                        used = [last[name] for name in ("cgroup_memory", "pss", "rss") if last[name] > 0]
                        share = max([share, *(amount / asked for amount in used[:1])])
            except (
                RecordError,
                OSError,
                LookupError,
                TypeError,
                ValueError,
                ArithmeticError,
                AttributeError,
                RecursionError,
            ):
                continue
        return share


def now(directory: Path) -> float:
    """Return the time by the one clock of the file system, or, where nothing can be written there, by this machine's."""
    try:
        return server_time(directory)
    except OSError:
        return time.time()


def breathing(directory: Path, time_now: float) -> set[str]:
    """Return the cells whose record was written a moment ago."""
    fresh = set()
    for path in (directory / RECORDS).glob("*.rec"):
        with suppress(OSError):
            if time_now - path.stat().st_mtime < LOST_SECONDS:
                fresh.add(path.name.partition(".")[0])
    return fresh


def is_new(directory: Path, submission: Submission, time_now: float) -> bool:
    """Tell whether a submission was made a moment ago, by the clock of the file system: Slurm may not list it yet."""
    try:
        made = (directory / SUBMISSIONS / submission.token).stat().st_mtime
    except OSError:
        made = submission.at
    return time_now - made < LOST_SECONDS


def _completed_by_record(directory: Path) -> set[str]:
    from hpcrl.formats.record import RecordError, read_frames

    cells = set()
    for path in (directory / RECORDS).glob("*.r0.rec"):
        try:
            for frame in read_frames(path, frozenset({"footer"})):
                if frame.payload.get("outcome") == OUTCOME_COMPLETED:
                    cells.add(path.name.partition(".")[0])
        except (RecordError, OSError, KeyError, TypeError, ValueError, RecursionError):
            continue
    return cells
