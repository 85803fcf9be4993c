"""Draw numbers in proportion to priorities that change (Schaul et al. 2016, arXiv 1511.05952, appendix B.2.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class SumTree:
    """Priorities of `capacity` places; each inner node of a binary tree has the sum of its two children, in float64."""

    def __init__(self, capacity: int) -> None:
        self._leaves = 1 << max(0, capacity - 1).bit_length()
        self._sums = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        return float(self._sums[1])

    def priorities(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the priorities (n,) of places."""
        return self._sums[self._leaves + places]

    def set(self, places: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Set the priorities (n,) of places; of a place that is named twice, the last counts."""
        sums, nodes = self._sums, self._leaves + places
        sums[nodes] = priorities
        if len(nodes) == 1:  # one new transition: Python's numbers take a twentieth of the time
            node = int(nodes[0])
            while (node := node // 2) > 0:
                sums[node] = sums[2 * node] + sums[2 * node + 1]
            return
        # A node of several places is summed for each of them: to find them out takes longer.
        while (nodes := nodes // 2)[0] > 0:
            sums[nodes] = sums[2 * nodes] + sums[2 * nodes + 1]

    def draw(self, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw places (count,): one from each of `count` equal shares of the total. A priority of 0 is never drawn."""
        sought = (np.arange(count) + generator.random(count)) * (self.total / count)
        sums, nodes = self._sums, np.ones(count, np.int64)
        while nodes[0] < self._leaves:
            nodes *= 2
            left = sums[nodes]
            # Sums are rounded: what is sought may lie beyond the last priority.
            right = (sought >= left) & (sums[nodes + 1] > 0)
            sought -= left * right
            nodes += right
        return nodes - self._leaves
