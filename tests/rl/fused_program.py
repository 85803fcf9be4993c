"""Run in JAX's environment: what the compiled loop stores, when it learns, and how it goes on, as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.rl.envs.jax import cartpole
from hpcrl.rl.frameworks.jax.fused_off_policy import FusedLoop
from hpcrl.rl.interfaces import Space
from hpcrl.rl.runs import Run as RunOfTraining
from hpcrl.rl.smoke import Silent
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import dqn, first_weights, learner_of

CONFIG = Settings(
    total_steps=180, hidden=(16,), batch_size=32, buffer_size=500, learning_rate=1e-2, learning_starts=100,
    train_interval=10, updates=5, target_interval=10, initial_epsilon=1.0, final_epsilon=1.0, evaluation_interval=90,
)  # fmt: skip


class Run:
    def __init__(self, config: Settings = CONFIG, name: str = "CartPole-v1", most: int = 5, seed: int = 1) -> None:
        made = dqn(config, Space(4, 2))
        weights = first_weights(made)
        self.first = weights["online"]
        self.learner: Any = learner_of("jax", "fused", made, weights)
        environment = SimpleNamespace(spec=SimpleNamespace(id=name, max_episode_steps=most))
        self.loop = FusedLoop(self.learner, environment, RunOfTraining(seed, Silent(), PhaseClock()))

    def to(self, step: int) -> Run:
        assert self.loop.advance(step, lambda: False)
        return self

    def stored(self) -> dict[str, Any]:
        return self.loop.state()[0]

    def unchanged(self, which: str = "online") -> bool:
        state = self.learner.state()
        return all(np.array_equal(state[f"{which}/{name}"], each) for name, each in self.first.items())


def copied(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(each) for name, each in arrays.items()}


def main() -> None:
    run = Run().to(90)
    stored, learner = copied(run.loop.state()[0]), copied(run.learner.state())
    kept = {name: each[:90] for name, each in run.stored().items() if each.ndim and len(each) == 500}
    following = np.asarray(jax.vmap(cartpole.step)(kept["observations"], kept["actions"])[0])
    facts = {
        "cut off": [int(kept["terminated"].sum()), int(run.loop.episodes)],
        "follows": bool(np.allclose(kept["following"], following, atol=1e-6)),
        "learnt at 90": not run.unchanged(),
        "learnt at 180": not run.to(180).unchanged(),
        "target renewed": not run.unchanged("target"),
    }
    second = run.stored()
    facts["stretches differ"] = second["actions"][:90].tolist() != second["actions"][90:180].tolist()
    facts["exploring"] = float(kept["actions"].mean())
    ends = copied(run.learner.state()), copied(run.loop.state()[0])

    run.learner.load_state(learner)
    run.loop.load_state(stored, {})
    run.loop.step = 90
    run.to(180)
    again = copied(run.learner.state()), copied(run.loop.state()[0])
    facts["resumed"] = all(
        np.array_equal(found[name], each)
        for whole, found in zip(ends, again, strict=True)
        for name, each in whole.items()
    )

    other = Run(replace(CONFIG, learning_starts=180), seed=3).to(90)
    facts["seeds differ"] = other.stored()["observations"][:90].tolist() != kept["observations"].tolist()
    facts["one update at the last step"] = not other.to(180).unchanged()
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
