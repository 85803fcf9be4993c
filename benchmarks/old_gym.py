"""Run in the peers' environment: a script for gym 0.23, which then has Gymnasium's HalfCheetah-v4.

python old_gym.py SCRIPT [ARGUMENTS]

CleanRL's TD3 of its last release needs that gym, whose own HalfCheetah needs bindings of MuJoCo that are in no package index. The script and
gym's loop of environments stay as they are. The adapter costs microseconds of a step; an update takes milliseconds.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import gym
import gymnasium

NAME = "HalfCheetah-v4"


class Box(gym.spaces.Box, gymnasium.spaces.Box):
    """A space for both: gym makes vectors of it, Stable-Baselines3 asks whether it is Gymnasium's."""


class Older(gym.Env):
    """Gymnasium's environment with the methods of the older gym."""

    def __init__(self) -> None:
        self._environment = gymnasium.make(NAME)
        self.observation_space, self.action_space = (
            Box(space.low, space.high, space.shape, space.dtype.type)
            for space in (self._environment.observation_space, self._environment.action_space)
        )
        self._seed: int | None = None

    def seed(self, seed: int | None = None) -> list[int | None]:
        self._seed = seed
        return [seed]

    def reset(self, **options: Any) -> Any:
        observation, _ = self._environment.reset(seed=self._seed)
        self._seed = None
        return observation

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._environment.step(action)
        return observation, float(reward), terminated or truncated, info | {"TimeLimit.truncated": truncated}


def run(script: str, *arguments: str) -> dict[str, Any]:
    """Run a script as a program, and return its variables."""
    if NAME not in gym.envs.registry.env_specs:
        gym.register(NAME, entry_point=Older)
    sys.argv = [script, *arguments]
    return runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    run(*sys.argv[1:])
