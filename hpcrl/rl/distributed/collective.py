"""How the ranks of a cell average their gradients: what all frameworks' ways have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.distributed.group import Group
from hpcrl.telemetry.phases import NOT_TRAINING, PhaseClock


class Collective:
    """The ranks of a cell; `name` names the method. A framework's class defines `mean`, `mean_array`, `wait` and `close`.

    Averaging is a phase of its own (`communicate`). Outside the training it belongs to the current phase.
    """

    def __init__(self, group: Group, name: str, clock: PhaseClock) -> None:
        self.rank, self.ranks, self.name = group.rank, group.ranks, name
        self._clock = clock

    def mean(self, vector: Any) -> Any:
        """Return the mean over ranks of the framework's own flat float32 vector."""
        raise NotImplementedError

    def mean_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mean over ranks of a NumPy vector."""
        raise NotImplementedError

    def wait(self, vector: Any) -> None:
        """Wait until a vector of the framework has been computed, so that the phase does not contain its computation."""

    def close(self) -> None:
        """Leave the group; all ranks must call this together."""

    def average(self, vector: Any) -> Any:
        """Return the mean over ranks of a flat vector, computed."""
        self.wait(vector)
        with self._phase():
            averaged = self.mean(vector)
            self.wait(averaged)
            return averaged

    def average_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mean over ranks of a NumPy vector."""
        with self._phase():
            return self.mean_array(values)

    def averaged(self, gradient: Callable[..., tuple[Any, Any]], **parts: Any) -> Callable[..., tuple[Any, Any]]:
        """Return `gradient`, which gives a flat gradient and aux for a rank's part of the batch, with its mean over ranks.

        Args:
            parts: for ways that average during the backward pass; the learner of the framework says what they are.
        """

        def mean_gradient(*arguments: Any) -> tuple[Any, Any]:
            change, aux = gradient(*arguments)
            return self.average(change), aux

        return mean_gradient

    @contextmanager
    def _phase(self) -> Iterator[None]:
        before = self._clock.phase
        self._clock.switch(before if before in NOT_TRAINING else "communicate")
        yield
        self._clock.switch(before)
