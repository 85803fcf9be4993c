"""Run by benchmarks.topologies in the environment `rllib`: DQN of Ray RLlib with environment runners on the same slow CartPole.

RLlib samples an interval on all runners, waits for all, and learns then. With `updates` 0 it only samples. Prints the wall time of
`total_steps` steps after the first iteration, and the updates in it.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter, sleep
from typing import Any

import gymnasium
import ray
from ray.rllib.algorithms.dqn import DQNConfig
from ray.tune.registry import register_env

NEVER = 10**9


class Slowed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Every step takes a while longer."""

    def __init__(self, seconds: float) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        sleep(self._seconds)
        return super().step(action)


def config_of(given: dict[str, Any], runners: int) -> DQNConfig:
    """Return the same work for each interval: its steps are divided among the runners, and it has as many updates."""
    fragment, batch = given["train_interval"] // max(runners, 1), given["batch_size"]
    # RLlib counts one runner more than there are.
    intensity = given["updates"] * batch / (fragment * (runners + 1))
    return (
        DQNConfig()
        .environment("slowed")
        .env_runners(num_env_runners=runners, rollout_fragment_length=fragment, num_cpus_per_env_runner=1)
        .learners(num_learners=0)
        .rl_module(
            model_config={"fcnet_hiddens": given["hidden"], "fcnet_activation": "relu", "head_fcnet_hiddens": []}
        )
        .training(
            train_batch_size_per_learner=batch,
            training_intensity=intensity or None,
            num_steps_sampled_before_learning_starts=given["learning_starts"] if given["updates"] else NEVER,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 50_000},
            double_q=False,
            dueling=False,
        )
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=4 * given["train_interval"])
    )


def main(text: str, runners: int) -> None:
    given = json.loads(text)
    register_env("slowed", lambda config: Slowed(given["step_latency"]))
    ray.init(num_cpus=runners + 1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    algorithm = config_of(given, runners).build_algo()
    before = counts(algorithm.train(), given["batch_size"])
    begun = perf_counter()
    while (after := counts(algorithm.train(), given["batch_size"]))[0] - before[0] < given["total_steps"]:
        pass
    wall, steps = perf_counter() - begun, after[0] - before[0]
    algorithm.stop()
    ray.shutdown()
    print(json.dumps({"wall": wall * given["total_steps"] / steps, "updates": after[1] - before[1], "steps": steps}))


def counts(result: dict[str, Any], batch: int) -> tuple[int, float]:
    """Return the environment steps and the updates so far."""
    steps = int(result["num_env_steps_sampled_lifetime"])
    trained = result.get("learners", {}).get("default_policy", {}).get("num_module_steps_trained_lifetime", 0)
    return steps, float(trained) / batch


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
