"""The peak of a job's memory, of readings that are seconds apart and of the kernel's own marks of each process."""

from __future__ import annotations

import os
from collections.abc import Mapping

_PAGE = os.sysconf("SC_PAGE_SIZE")

# By so much more resident memory than at the largest full reading, another one is worth its cost.
_GROWN = 1.01
Sizes = Mapping[int, tuple[int, int]]  # process -> resident bytes now, and the most so far (VmHWM)


class PeakMemory:
    """Follows proportional memory (PSS): shared pages are counted once, and no spike between two readings is missed.

    A process that held more between two readings than at either is found by the kernel's own mark of it, and that
    much is added to what all of them hold. Of several such processes only the largest is added: nobody knows whether
    they peaked at once.
    """

    def __init__(self) -> None:
        self.peak: float | None = None
        self._pss = 0.0
        self._shared = 0.0  # by how much the sum of resident memory was above PSS
        self._full = 0.0  # the sum of resident memory at the largest full reading
        self._before: Sizes = {}

    def grows(self, sizes: Sizes) -> bool:
        """Tell whether more memory is resident than whenever PSS was read."""
        return _resident(sizes) > _GROWN * self._full

    def may_part(self, sizes: Sizes, faults: int) -> bool:
        """Tell whether forked processes may have made so many pages their own since PSS was read last.

        Args:
            faults: how many pages they have asked the kernel for since then.
        """
        return len(sizes) > 1 and faults * _PAGE > (_GROWN - 1) * self._pss

    def take(self, sizes: Sizes, pss: float | None) -> float | None:
        """Take one reading, with PSS or without, and return the peak so far in bytes; None before PSS was ever read."""
        if pss is not None:
            self._pss = pss
            self._shared = max(0.0, _resident(sizes) - pss)
            self._full = max(self._full, float(_resident(sizes)))
        if pss is not None or self.peak is not None:
            # One process shares what it shares; of several nobody knows what of a growth is shared.
            alone = max(0.0, _resident(sizes) - self._shared) if len(sizes) == 1 else self._pss
            self.peak = max(self.peak or 0.0, (alone if pss is None else pss) + self._spike(sizes))
        self._before = dict(sizes)
        return self.peak

    def _spike(self, sizes: Sizes) -> int:
        """Return by how much one process had exceeded, since the last reading, what it holds now."""
        above = 0
        for process, (now, most) in sizes.items():
            if most > self._before.get(process, (0, 0))[1]:
                above = max(above, most - now)
        return above


def _resident(sizes: Sizes) -> int:
    return sum(now for now, _ in sizes.values())
