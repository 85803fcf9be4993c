"""Run in a framework's own environment: train by CleanRL's settings and print environment steps per second.

python training_program.py FRAMEWORK EXECUTION ACTING [ALGORITHM], or sb3 or rejax [ALGORITHM]
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple


class Task(NamedTuple):
    """What is trained, for how many steps, and from which step on time counts, on every side: everything is compiled by then."""

    environment: str
    steps: int
    warm: int
    settings: dict[str, Any]


STEPS, WARM = 50_000, 12_288
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
# CleanRL's td3_continuous_action.py: its defaults, but for the number of steps, the random ones among them, and the buffer.
TD3: dict[str, Any] = {
    "total_steps": 14_000, "hidden": [256, 256], "learning_rate": 3e-4, "final_learning_rate": 3e-4,
    "value_learning_rate": 3e-4, "final_value_learning_rate": 3e-4, "batch_size": 256, "buffer_size": 100_000,
    "random_steps": 10_000, "learning_starts": 10_000, "train_interval": 1, "updates": 1, "policy_delay": 2,
    "evaluation_interval": 11_000, "evaluation_episodes": 1,
}  # fmt: skip
TASKS = {
    "dqn": Task("CartPole-v1", STEPS, WARM, SETTINGS),
    "ppo": Task("CartPole-v1", STEPS, WARM, PPO),
    "td3": Task("HalfCheetah-v5", 14_000, 11_000, TD3),
}


class Watch:
    """Seconds from the first step that counts to the last; a reporter of ours, and a callback of others."""

    def __init__(self, warm: int) -> None:
        self._warm = warm
        self._first: tuple[int, float] | None = None
        self._last = (0, 0.0)

    def progress(self, step: int, total: int) -> None:
        self._last = step, time.perf_counter()
        if self._first is None and step >= self._warm:
            self._first = self._last

    def rate(self) -> float:
        """Return steps per second."""
        assert self._first is not None and self._last[0] > self._first[0]
        return (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])


def ours(framework: str, execution: str, acting: str, name: str = "dqn") -> float:
    from functools import partial

    from hpcrl.catalogue.fields import check, names
    from hpcrl.catalogue.registry import algorithms
    from hpcrl.formats.facts import Asked
    from hpcrl.rl.distributed.group import Group
    from hpcrl.rl.envs.make import gymnasium_environment
    from hpcrl.rl.make import make_training
    from hpcrl.rl.runs import Run
    from hpcrl.rl.smoke import Silent
    from hpcrl.run.training import before_import
    from hpcrl.telemetry.phases import PhaseClock

    class Reporter(Watch, Silent):
        """Nothing but the watch."""

    before_import({"framework": framework}, Asked(1, 1024, 60), Group())
    task = TASKS[name]
    kind = algorithms()[name].settings
    given = task.settings | ({"acting": acting} if "acting" in names(kind) else {})
    reporter = Reporter(task.warm)
    run = Run(1, reporter, PhaseClock())
    training = make_training(
        name,
        check(name, kind, given),
        framework,
        execution,
        partial(gymnasium_environment, task.environment, None),
        run,
    )
    for until in (*range(task.warm, task.steps, task.warm), task.steps):  # no evaluation: the peers have none
        training.loop.advance(until, lambda: False)
    training.loop.close()
    return reporter.rate()


def sb3(name: str = "dqn") -> float:
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3 import PPO as Ppo
    from stable_baselines3 import TD3 as Td3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise

    class Callback(BaseCallback):
        def _on_step(self) -> bool:
            watch.progress(self.num_timesteps, task.steps)
            return True

    task = TASKS[name]
    watch = Watch(task.warm)
    torch.set_num_threads(1)
    if name == "dqn":
        model = DQN(
            "MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [120, 84]}, learning_rate=2.5e-4, batch_size=128,
            buffer_size=10_000, learning_starts=10_000, target_update_interval=500, train_freq=10, gradient_steps=1,
            exploration_initial_eps=1.0, exploration_final_eps=0.05, exploration_fraction=0.5, seed=1, device="cpu",
        )  # fmt: skip
    elif name == "td3":
        model = Td3(
            "MlpPolicy", "HalfCheetah-v4", policy_kwargs={"net_arch": [256, 256]}, learning_rate=3e-4, batch_size=256,
            buffer_size=100_000, learning_starts=10_000, train_freq=1, gradient_steps=1, policy_delay=2, tau=0.005, gamma=0.99,
            action_noise=NormalActionNoise([0.0] * 6, [0.1] * 6), target_policy_noise=0.2, target_noise_clip=0.5, seed=1, device="cpu",
        )  # fmt: skip
    else:
        model = Ppo(
            "MlpPolicy", make_vec_env("CartPole-v1", 8, seed=1), learning_rate=2.5e-4, n_steps=128, batch_size=256, n_epochs=4,
            gamma=0.99, gae_lambda=0.95, clip_range=0.2, clip_range_vf=0.2, ent_coef=0.01, seed=1, device="cpu",
        )  # fmt: skip
    model.learn(task.steps, callback=Callback())
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
