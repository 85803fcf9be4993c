"""What losses also return, as means over the intervals or rollouts of a training."""

from __future__ import annotations

from typing import Any

from hpcrl.rl.interfaces import Learner


class Measures:
    """The means of the last aux arrays of a loss, which have these names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._sums = dict.fromkeys(names, 0.0)
        self._intervals = 0

    def add(self, learner: Learner, aux: Any) -> None:
        """Take the aux of an interval's last update, or of all of them, stacked."""
        if not self._sums:
            return
        self._intervals += 1
        for name, array in zip(self._sums, learner.read(aux)[-len(self._sums) :], strict=True):
            self._sums[name] += float(array.mean())

    def means(self) -> dict[str, float]:
        """Return the mean of each name; nothing before the first interval."""
        return {name: total / self._intervals for name, total in self._sums.items()} if self._intervals else {}
