"""Run in a framework's own environment: train by CleanRL's settings and print environment steps per second.

python training_program.py FRAMEWORK EXECUTION ACTING [ALGORITHM], or sb3 or rejax [ALGORITHM]
"""

from __future__ import annotations

import sys
import time
from typing import Any

STEPS = 50_000
# Time counts from this step on, on every side: everything is compiled by then, and DQN learns.
WARM = 12_288
# CleanRL's dqn.py and ppo.py: their defaults, but for the number of steps and, for PPO, twice as many environments.
SETTINGS: dict[str, Any] = {
    "total_steps": STEPS, "hidden": [120, 84], "learning_rate": 2.5e-4, "final_learning_rate": 2.5e-4, "batch_size": 128,
    "buffer_size": 10_000, "learning_starts": 10_000, "target_interval": 500, "train_interval": 10, "updates": 1,
    "initial_epsilon": 1.0, "final_epsilon": 0.05, "exploration_fraction": 0.5, "loss": "mse", "max_gradient_norm": 0.0,
    "evaluation_interval": WARM, "evaluation_episodes": 1,
}  # fmt: skip
PPO: dict[str, Any] = {
    "total_steps": STEPS, "hidden": [64, 64], "learning_rate": 2.5e-4, "final_learning_rate": 0.0, "environments": 8,
    "rollout_steps": 128, "minibatch_size": 256, "epochs": 4, "gamma": 0.99, "gae_lambda": 0.95, "clip_range": 0.2,
    "final_clip_range": 0.2, "clip_values": True, "entropy_weight": 0.01, "value_weight": 0.5, "max_gradient_norm": 0.5,
    "evaluation_interval": WARM, "evaluation_episodes": 1,
}  # fmt: skip


class Watch:
    """Seconds from the step WARM to the last; a reporter of ours, and a callback of others."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._last = (0, 0.0)

    def progress(self, step: int, total: int) -> None:
        self._last = step, time.perf_counter()
        if self._first is None and step >= WARM:
            self._first = self._last

    def rate(self) -> float:
        """Return steps per second."""
        assert self._first is not None and self._last[0] > self._first[0]
        return (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])


def ours(framework: str, execution: str, acting: str, name: str = "dqn") -> float:
    import gymnasium

    from hpcrl.catalogue.fields import check
    from hpcrl.catalogue.registry import algorithms
    from hpcrl.rl.distributed.group import Group
    from hpcrl.rl.make import make_training
    from hpcrl.rl.runs import Run
    from hpcrl.rl.smoke import Silent
    from hpcrl.run.training import before_import
    from hpcrl.telemetry.phases import PhaseClock

    class Reporter(Watch, Silent):
        """Nothing but the watch."""

    before_import({"framework": framework}, {"cpus": 1}, Group())
    chosen = {"dqn": SETTINGS, "ppo": PPO}[name]
    settings = check(name, algorithms()[name].settings, chosen | {"acting": acting})
    reporter = Reporter()
    run = Run(1, reporter, PhaseClock())
    training = make_training(name, settings, framework, execution, lambda: gymnasium.make("CartPole-v1"), run)
    for until in (*range(WARM, STEPS, WARM), STEPS):  # no evaluation: the peers have none
        training.loop.advance(until, lambda: False)
    training.loop.close()
    return reporter.rate()


def sb3(name: str = "dqn") -> float:
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3 import PPO as Ppo
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Callback(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            watch.progress(self.num_timesteps, STEPS)
            return True

    watch = Watch()
    torch.set_num_threads(1)
    if name == "dqn":
        model = DQN(
            "MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [120, 84]}, learning_rate=2.5e-4, batch_size=128,
            buffer_size=10_000, learning_starts=10_000, target_update_interval=500, train_freq=10, gradient_steps=1,
            exploration_initial_eps=1.0, exploration_final_eps=0.05, exploration_fraction=0.5, seed=1, device="cpu",
        )  # fmt: skip
    else:
        model = Ppo(
            "MlpPolicy", make_vec_env("CartPole-v1", 8, seed=1), learning_rate=2.5e-4, n_steps=128, batch_size=256, n_epochs=4,
            gamma=0.99, gae_lambda=0.95, clip_range=0.2, clip_range_vf=0.2, ent_coef=0.01, seed=1, device="cpu",
        )  # fmt: skip
    model.learn(STEPS, callback=Callback())
    return watch.rate()


def rejax(name: str = "dqn") -> float:
    """One update for every ten steps, as CleanRL has it, takes ten environments here, side by side.

    A run to the last step minus one to the step WARM, both compiled before.
    """
    seconds = {}
    for steps in (WARM, STEPS):
        train, key, wanted = (_rejax_dqn if name == "dqn" else _rejax_ppo)(steps)
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            done = train(key)
            best = min(best, time.perf_counter() - start)
        assert done == wanted, (done, wanted)
        seconds[wanted] = best
    (first, before), (last, whole) = seconds.items()
    return (last - first) / (whole - before)


def _rejax_dqn(steps: int) -> tuple[Any, Any, int]:
    from flax import linen
    from rejax import DQN
    from rejax.networks import DiscreteQNetwork, EpsilonGreedyPolicy

    steps -= steps % 10
    algorithm = DQN.create(
        env="CartPole-v1", total_timesteps=steps, eval_freq=steps, skip_initial_evaluation=True, num_envs=10,
        num_epochs=1, buffer_size=10_000, fill_buffer=10_000, batch_size=128, learning_rate=2.5e-4, ddqn=False,
        target_update_freq=500, eps_start=1.0, eps_end=0.05, exploration_fraction=0.5,
    )  # fmt: skip
    network = EpsilonGreedyPolicy(DiscreteQNetwork)((120, 84), action_dim=2, activation=linen.relu)
    return *_compiled(algorithm.replace(agent=network)), steps


def _rejax_ppo(steps: int) -> tuple[Any, Any, int]:
    from rejax import PPO as Ppo

    steps -= steps % 1024
    algorithm = Ppo.create(
        env="CartPole-v1", total_timesteps=steps, eval_freq=steps, skip_initial_evaluation=True, num_envs=8, num_steps=128,
        num_epochs=4, num_minibatches=4, learning_rate=2.5e-4, gamma=0.99, gae_lambda=0.95, clip_eps=0.2, ent_coef=0.01,
        vf_coef=0.5, max_grad_norm=0.5, agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
    )  # fmt: skip
    return *_compiled(algorithm), steps


def _compiled(algorithm: Any) -> tuple[Any, Any]:
    import jax

    algorithm = algorithm.replace(eval_callback=lambda algorithm, state, key: state.global_step)
    key = jax.random.PRNGKey(1)
    train = jax.jit(lambda key: algorithm.train(key)).lower(key).compile()
    return (lambda key: int(jax.block_until_ready(train(key))[1][0])), key


PEERS = {"sb3": sb3, "rejax": rejax}

if __name__ == "__main__":
    program = PEERS.get(sys.argv[1])
    print(f"SPS: {program(*sys.argv[2:]) if program else ours(*sys.argv[1:]):.0f}")
