"""What is submitted: tasks of a plan's job, with their requests."""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.formats.plan import Job


@dataclass(frozen=True)
class Ask:
    """The requests of the attempts of one submission; None: as in the plan."""

    cause: str = "first"
    time: int | None = None
    memory: int | None = None
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """Tasks of one job with equal requests, each with the number of its attempt.

    `environments` are the keys of those that the stage `environments` builds; None for other jobs.
    """

    job: Job
    ask: Ask
    tasks: list[tuple[int, int]]
    environments: tuple[str, ...] | None = None

    @property
    def array_size(self) -> int:
        return -(-len(self.tasks) // self.job.cells_per_task)
