"""Close the environments of a training: a simulator may be a process of its own, which ends when its environment closes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any


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


def close_all(environments: Iterable[Any]) -> list[str]:
    """Close those of some environments that can be closed. Return what their own code raised, one line for each error."""
    faults = []
    for environment in environments:
        try:
            getattr(environment, "close", lambda: None)()
        except Exception as error:  # whatever the environment's own code raises
            first_line = next(iter(str(error).strip().splitlines()), "")
            faults.append(f"{type(error).__name__}: {first_line}".removesuffix(": "))
    return faults
