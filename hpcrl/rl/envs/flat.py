"""An environment whose images are flat, as hpcrl has all observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcrl.catalogue.images import kind_of


class Flat:
    """Shows each image (height, width, channels) of `environment` as (inputs,). Its space is still that of the images."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self.observation_space, self.action_space = environment.observation_space, environment.action_space
        self.spec = getattr(environment, "spec", None)

    def reset(self, seed: int | None = None) -> Any:
        image, facts = self._environment.reset(seed=seed)
        return image.reshape(-1), facts

    def step(self, action: Any) -> Any:
        image, *others = self._environment.step(action)
        return image.reshape(-1), *others

    def close(self) -> None:
        self._environment.close()


def flat_environment(make_environment: Callable[[], Any]) -> Any:
    """Make an environment whose images, if it shows any, are flat."""
    environment = make_environment()
    return Flat(environment) if kind_of(environment.observation_space) == "image" else environment
