"""Run in a framework's own environment: train by CleanRL's settings and print environment steps per second.

python training_program.py FRAMEWORK EXECUTION ACTING, or sb3, or rejax
"""

from __future__ import annotations

import sys
import time
from typing import Any

STEPS = 50_000
# CleanRL's dqn.py: its defaults, but for the number of steps.
SETTINGS: dict[str, Any] = {
    "total_steps": STEPS, "hidden": [120, 84], "learning_rate": 2.5e-4, "final_learning_rate": 2.5e-4, "batch_size": 128,
    "buffer_size": 10_000, "learning_starts": 10_000, "target_interval": 500, "train_interval": 10, "updates": 1,
    "initial_epsilon": 1.0, "final_epsilon": 0.05, "exploration_fraction": 0.5, "loss": "mse", "max_gradient_norm": 0.0,
    "evaluation_interval": STEPS, "evaluation_episodes": 1,
}  # fmt: skip


def ours(framework: str, execution: str, acting: str) -> float:
    import gymnasium

    from hpcrl.catalogue.algorithms.dqn import Settings
    from hpcrl.catalogue.fields import check
    from hpcrl.rl.distributed.group import Group
    from hpcrl.rl.make import make_training
    from hpcrl.rl.runs import Run
    from hpcrl.rl.smoke import Silent
    from hpcrl.rl.train import train
    from hpcrl.run.training import before_import
    from hpcrl.telemetry.phases import BEFORE_TRAINING, PhaseClock

    before_import({"framework": framework}, {"cpus": 1}, Group())
    settings = check("dqn", Settings, SETTINGS | {"acting": acting})
    clock = PhaseClock()
    run = Run(1, Silent(), clock)
    train(make_training("dqn", settings, framework, execution, lambda: gymnasium.make("CartPole-v1"), run))
    # The peers evaluate nothing, and count no time before their first step.
    seconds = clock.total() - sum(clock.seconds[phase] for phase in (*BEFORE_TRAINING, "evaluate"))
    return STEPS / seconds


def sb3() -> float:
    import torch
    from stable_baselines3 import DQN

    torch.set_num_threads(1)
    model = DQN(
        "MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [120, 84]}, learning_rate=2.5e-4, batch_size=128,
        buffer_size=10_000, learning_starts=10_000, target_update_interval=500, train_freq=10, gradient_steps=1,
        exploration_initial_eps=1.0, exploration_final_eps=0.05, exploration_fraction=0.5, seed=1, device="cpu",
    )  # fmt: skip
    start = time.perf_counter()
    model.learn(STEPS)
    return STEPS / (time.perf_counter() - start)


def rejax() -> float:
    """One update for every ten steps, as CleanRL has it, takes ten environments here, side by side."""
    import jax
    from flax import linen
    from rejax import DQN
    from rejax.networks import DiscreteQNetwork, EpsilonGreedyPolicy

    algorithm = DQN.create(
        env="CartPole-v1", total_timesteps=STEPS, eval_freq=STEPS, skip_initial_evaluation=True, num_envs=10,
        num_epochs=1, buffer_size=10_000, fill_buffer=10_000, batch_size=128, learning_rate=2.5e-4, ddqn=False,
        target_update_freq=500, eps_start=1.0, eps_end=0.05, exploration_fraction=0.5,
    )  # fmt: skip
    network = EpsilonGreedyPolicy(DiscreteQNetwork)((120, 84), action_dim=2, activation=linen.relu)
    algorithm = algorithm.replace(agent=network, eval_callback=lambda algorithm, state, key: state.global_step)
    key = jax.random.PRNGKey(1)
    train = jax.jit(lambda key: algorithm.train(key)).lower(key).compile()
    start = time.perf_counter()
    _, (steps,) = jax.block_until_ready(train(key))
    seconds = time.perf_counter() - start
    assert steps == STEPS, steps
    return STEPS / seconds


PEERS = {"sb3": sb3, "rejax": rejax}

if __name__ == "__main__":
    program = PEERS.get(sys.argv[1])
    print(f"SPS: {program() if program else ours(*sys.argv[1:]):.0f}")
