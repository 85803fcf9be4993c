"""Close the environments of a training: a simulator may be a process of its own, which ends when its environment closes."""

from __future__ import annotations

import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

CLOSE_SECONDS = 30.0  # for all environments of a process together


class Closing:
    """Makes environments, and closes those that it made in this process and that are still in use.

    A process of environments gets a factory of its own: there :func:`close_all` closes them.
    """

    def __init__(self, make_environment: Callable[[], Any]) -> None:
        self._make = make_environment
        self._made: list[weakref.ref[Any]] = []

    def __call__(self) -> Any:
        environment = self._make()
        self._made.append(weakref.ref(environment))
        return environment

    def __reduce__(self) -> tuple[type[Closing], tuple[Callable[[], Any]]]:
        return Closing, (self._make,)

    def close(self) -> list[str]:
        """Close them. Return what their own code raised, one line for each error."""
        made, self._made = self._made, []
        return close_all(environment for reference in made if (environment := reference()) is not None)


def close_all(environments: Iterable[Any], seconds: float = CLOSE_SECONDS) -> list[str]:
    """Close those of some environments that can be closed. Return what their own code raised, one line for each error.

    A close() that does not return is left after `seconds`, of which all environments have their share: a simulator that hangs
    must not hold a training that is over. This needs the main thread, and code that Python can interrupt.
    """
    faults = []
    deadline = time.monotonic() + seconds
    for environment in environments:
        try:
            with _interrupted_at(deadline, seconds):
                getattr(environment, "close", lambda: None)()
        except Exception as error:  # whatever the environment's own code raises
            first_line = next(iter(str(error).strip().splitlines()), "")
            faults.append(f"{type(error).__name__}: {first_line}".removesuffix(": "))
    return faults


@contextmanager
def _interrupted_at(deadline: float, seconds: float) -> Iterator[None]:
    """Raise a TimeoutError in the main thread at a time of time.monotonic(); an alarm that is set already is put off."""

    def late(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"close() had not returned after {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    left, _ = signal.setitimer(signal.ITIMER_REAL, max(0.01, deadline - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
