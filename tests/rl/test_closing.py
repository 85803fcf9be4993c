"""The environments of a training are closed when it is over."""

from __future__ import annotations

import pickle
import signal
import time

import pytest

from hpcrl.rl.envs.closing import Closing, close_all


class Simulator:
    """An environment that counts how often it was closed."""

    def __init__(self, fault: str = "") -> None:
        self.closed, self._fault = 0, fault

    def close(self) -> None:
        self.closed += 1
        if self._fault:
            raise RuntimeError(self._fault)


def test_environments_in_use_are_closed_once() -> None:
    made = Closing(Simulator)
    used, dropped = made(), made()
    del dropped
    assert made.close() == []
    assert used.closed == 1
    assert made.close() == []
    assert used.closed == 1


def test_one_that_fails_is_told_and_the_others_are_closed() -> None:
    first, last = Simulator("it hangs\nin line 7"), Simulator()
    assert close_all([first, object(), last]) == ["RuntimeError: it hangs"]
    assert (first.closed, last.closed) == (1, 1)


def test_another_process_gets_a_factory_of_its_own() -> None:
    made = Closing(Simulator)
    used = made()
    other: Closing = pickle.loads(pickle.dumps(made))
    there = other()
    assert other.close() == []
    assert (used.closed, there.closed) == (0, 1)


@pytest.mark.timeout(0)  # it has the only alarm
def test_a_simulator_that_hangs_is_left_and_the_others_are_closed() -> None:
    class Hanging:
        def close(self) -> None:
            while True:
                time.sleep(3600)

    last = Simulator()
    before = signal.getsignal(signal.SIGALRM)
    assert (
        close_all([Hanging(), Hanging(), last], seconds=0.2)
        == ["TimeoutError: close() had not returned after 0.2 s"] * 2
    )
    assert last.closed == 1
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == (before, (0.0, 0.0))
