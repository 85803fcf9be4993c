"""Compilation is not part of the training: a learner's programs are called once before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcrl.rl.interfaces import Learner


@contextmanager
def restored(learner: Learner) -> Iterator[None]:
    """Restore the learner's state afterwards, and wait until it has finished its work."""
    before = {name: array.copy() for name, array in learner.state().items()}
    yield
    learner.load_state(before)
    learner.synchronize()
