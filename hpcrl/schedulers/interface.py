"""What a scheduler's package has, and the questions that go to all schedulers of a plan."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from hpcrl.formats.lease import Lease, Say
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import Plan
from hpcrl.formats.submission import Submission
from hpcrl.schedulers.evidence import Evidence
from hpcrl.schedulers.states import Of, TaskStatus
from hpcrl.schedulers.wanted import Wanted
from hpcrl.slurm.client import Slurm, View

Report = Callable[[int, int, str], None]  # number of cells handed over, of how many, and the last job's name
Jobs = list[tuple[str, str]]  # (job of the plan, the scheduler's id)


@dataclass(frozen=True)
class Desk:
    """What a submission has at hand. The caller holds the lease.

    `intend` writes down the intent to hand something over, before that is done.
    """

    directory: Path
    plan: Plan
    ledger: Ledger
    lease: Lease
    slurm: Slurm
    report: Report
    say: Say
    intend: Callable[[Wanted], Submission]


class AtWork(Protocol):
    """A scheduler. `slurm` is the client that its callers were given; `made` are only its own submissions."""

    def look(self, slurm: Slurm, ledger: Ledger, made: Sequence[Submission], over: Sequence[Submission]) -> View:
        """Say what is queued and what has ended. Of the submissions `over`, which should have ended, only what is queued."""

    def settle(
        self, directory: Path, ledger: Ledger, slurm: Slurm, made: Sequence[Submission], say: Say
    ) -> Sequence[Submission]:
        """Find out what happened to intents; return those that stay unconfirmed because nobody answers."""

    def judge(self, evidence: Evidence, made: Sequence[Submission]) -> Of:
        """Return the function that decides the state of an attempt."""

    def hand_over(
        self,
        desk: Desk,
        units: Mapping[str, TaskStatus],
        before: Iterable[Wanted],
        cells: Sequence[Wanted],
        after: Iterator[Wanted],
    ) -> tuple[Jobs, int]:
        """Hand over cells, and the stages before and after them. Return the jobs, and how many cells must wait for room.

        Args:
            units: the state of every cell and stage.
            after: withdraws the stages that wait for earlier cells when it is read.
        """

    def cancel(
        self,
        directory: Path,
        ledger: Ledger,
        slurm: Slurm,
        units: Mapping[str, TaskStatus],
        every: Sequence[Submission] = (),
    ) -> None:
        """End some cells or stages, and, of the submissions `every`, also what is queued unexpectedly."""


def at_work(name: str) -> AtWork:
    """Return the package of a scheduler of the catalogue."""
    return cast(AtWork, importlib.import_module(f"hpcrl.schedulers.{name}"))


def by_scheduler(made: Iterable[Submission]) -> dict[str, list[Submission]]:
    """Group submissions by the names of their schedulers."""
    groups: dict[str, list[Submission]] = {}
    for submission in made:
        groups.setdefault(submission.executor, []).append(submission)
    return groups


def look(slurm: Slurm, ledger: Ledger | None, made: Sequence[Submission], over: Sequence[Submission] = ()) -> View:
    """Ask every scheduler of some submissions what it has of them. There are none without a ledger."""
    view = View()
    if ledger is None:
        return view
    mine, ended = by_scheduler(made), by_scheduler(over)
    for name in {**mine, **ended}:
        view |= at_work(name).look(slurm, ledger, mine.get(name, ()), ended.get(name, ()))
    return view
