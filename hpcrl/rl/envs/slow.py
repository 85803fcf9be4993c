"""An environment with a latency, as a simulator behind a socket has one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Slow:
    """Every step of `environment` takes `seconds` more, in which the process needs no core."""

    def __init__(self, environment: Any, seconds: float) -> None:
        self._environment, self._seconds = environment, seconds
        self.observation_space, self.action_space = environment.observation_space, environment.action_space
        self.reset, self.spec = environment.reset, getattr(environment, "spec", None)

    def step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        return self._environment.step(action)

    def close(self) -> None:
        self._environment.close()


def slow_environment(make_environment: Callable[[], Any], seconds: float) -> Slow:
    """Make an environment whose every step takes `seconds` more."""
    return Slow(make_environment(), seconds)
