"""The peak of a job's memory, from readings that are seconds apart and the kernel's peak of each process."""

from __future__ import annotations

import os
from collections.abc import Mapping

_PAGE = os.sysconf("SC_PAGE_SIZE")

# Read PSS again when resident memory exceeds that of the largest full reading by this factor.
_GROWN = 1.01
Sizes = Mapping[int, tuple[int, int]]  # process -> resident bytes now, and the maximum so far (VmHWM)


class PeakMemory:
    """Follows proportional memory (PSS): shared pages count once, and no spike between two readings is missed.

    If a process had more memory between two readings than at either, the kernel's peak of it shows that, and the
    difference is added to the total. Of several such processes only the largest counts, because it is unknown whether
    they peaked at the same time.
    """

    def __init__(self) -> None:
        self.peak: float | None = None
        self._pss = 0.0
        self._shared = 0.0  # difference between the sum of resident memory and PSS
        self._full = 0.0  # the sum of resident memory at the largest full reading
        self._before: Sizes = {}

    def grows(self, sizes: Sizes) -> bool:
        """Tell whether more memory is resident than at any reading of PSS."""
        return _resident(sizes) > _GROWN * self._full

    def may_part(self, sizes: Sizes, faults: int) -> bool:
        """Tell whether forked processes may have copied that many pages since the last reading of PSS.

        Args:
            faults: number of pages that they have requested from the kernel since then.
        """
        return len(sizes) > 1 and faults * _PAGE > (_GROWN - 1) * self._pss

    def take(self, sizes: Sizes, pss: float | None) -> float | None:
        """Take one reading, with PSS or without, and return the peak so far in bytes; None before PSS was ever read."""
        if pss is not None:
            self._pss = pss
            self._shared = max(0.0, _resident(sizes) - pss)
            self._full = max(self._full, float(_resident(sizes)))
        if pss is not None or self.peak is not None:
            # For one process the shared part is known; for several it is unknown which part of a growth is shared.
            alone = max(0.0, _resident(sizes) - self._shared) if len(sizes) == 1 else self._pss
            self.peak = max(self.peak or 0.0, (alone if pss is None else pss) + self._spike(sizes))
        self._before = dict(sizes)
        return self.peak

    def _spike(self, sizes: Sizes) -> int:
        """Return the maximum by which one process, since the last reading, exceeded its present memory."""
        above = 0
        for process, (now, most) in sizes.items():
            if most > self._before.get(process, (0, 0))[1]:
                above = max(above, most - now)
        return above


def _resident(sizes: Sizes) -> int:
    return sum(now for now, _ in sizes.values())
