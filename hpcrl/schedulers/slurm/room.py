"""The site's maximum of array tasks per user in the queue, and a plan's cells in parts that fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcrl.formats.plan import Job, Plan
from hpcrl.schedulers.wanted import Wanted
from hpcrl.slurm.client import Slurm


class Room:
    """The site's maximum of array tasks in the queue for this user, and the number in use."""

    def __init__(self, plan: Plan, slurm: Slurm) -> None:
        self._limits: dict[str | None, int] = {}
        limits = plan.limits
        self._array = plan.cluster.max_array_size
        for qos, most in [(None, limits.get("submitted")), *(limits.get("queued") or {}).items()]:
            if most:
                self._limits[qos] = int(most) - (slurm.queued_tasks(qos) or 0)

    def take(self, wanted: Wanted) -> None:
        for qos in self._limits:
            if qos in (None, wanted.job.qos):
                self._limits[qos] -= wanted.array_size

    def parts(self, cells: Sequence[Wanted], reserved: Sequence[Job]) -> Iterator[Wanted]:
        """Give as many of the cells as fit, in arrays that the site accepts, and leave room for the following stages."""
        for wanted in cells:
            start = 0
            while start < len(wanted.tasks):
                room = min(self._array, self._free(wanted.job.qos, reserved))
                if room <= 0:
                    return
                step = room * wanted.job.cells_per_task
                yield Wanted(wanted.job, wanted.ask, wanted.tasks[start : start + step])
                start += step

    def _free(self, qos: str | None, reserved: Sequence[Job]) -> int:
        free = [
            left - max(1, sum(name is None or job.qos == name for job in reserved))
            for name, left in self._limits.items()
            if name in (None, qos)
        ]
        return min(free, default=self._array)
