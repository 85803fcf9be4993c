"""CartPole with a fault of a rank, chosen by the variable FAULT; copied into a plan directory, where cells find it.

FAULT_RANK (1) has the fault, in the first step of episode FAULT_EPISODE if that is given, and FAULT_FILE gets the time of it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

RANK = next(
    (os.environ[name] for name in ("SLURM_PROCID", "HPCRL_RANK", "OMPI_COMM_WORLD_RANK") if name in os.environ), "0"
)
FAULT = os.environ.get("FAULT", "")
IS_FAULTY = os.environ.get("FAULT_RANK", "1") == RANK
# Rank 0 of a learner and actors steps in evaluations only.
STEPS = 700 if RANK != "0" else 60
EPISODE = int(os.environ.get("FAULT_EPISODE", "0"))


class Faulty(CartPoleEnv):
    def __init__(self) -> None:
        super().__init__()
        self.taken = self.episodes = 0
        self.wide = FAULT == "shape" and RANK == "1"
        if self.wide:
            bounds = np.append(self.observation_space.high, np.float32(1))
            self.observation_space = gymnasium.spaces.Box(-bounds, bounds, dtype=np.float32)

    def seen(self, observation: Any) -> Any:
        return np.append(observation, np.float32(0)) if self.wide else observation

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episodes += 1
        observation, facts = super().reset(seed=seed, options=options)
        return self.seen(observation), facts

    def step(self, action: int) -> Any:
        self.taken += 1
        if IS_FAULTY and (self.episodes == EPISODE if EPISODE else self.taken == STEPS):
            if file := os.environ.get("FAULT_FILE"):
                Path(file).write_text(str(time.time()))
            if FAULT == "error":
                raise RuntimeError("the simulator of this rank is gone")
            if FAULT == "memory":
                raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
            if FAULT == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if FAULT == "silence":
                while True:
                    time.sleep(3600)
        observation, *rest = super().step(action)
        return self.seen(observation), *rest


gymnasium.register("Faulty-v0", Faulty, max_episode_steps=1000)
