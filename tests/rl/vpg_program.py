"""What VPG learns in one of a framework's modes, where the answer is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.vpg import Settings
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.envs.probes import Probe
from hpcrl.rl.interfaces import Weights
from hpcrl.rl.make import make_training
from hpcrl.rl.rollout import Rollout, advantages
from hpcrl.rl.runs import Run
from hpcrl.rl.smoke import Silent
from hpcrl.rl.specification.networks import forward
from hpcrl.rl.train import train
from hpcrl.rl.vector.make import make_vector
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Target, exact
from tests.rl.parity_program import stray

SETTINGS = Settings(
    total_steps=3_000, hidden=(16,), learning_rate=1e-2, final_learning_rate=3e-4, value_learning_rate=1e-2,
    final_value_learning_rate=1e-3, gamma=0.5, environments=10,
    rollout_steps=10, value_steps=5, evaluation_interval=3_000, evaluation_episodes=2,
)  # fmt: skip


class PureTarget(Target):
    """Target, which JAX has, too: see :func:`jax_world`."""

    spec = SimpleNamespace(
        id="PureTarget-v0", entry_point="tests.rl.vpg_program:PureTarget", max_episode_steps=None, kwargs={}
    )  # fmt: skip


def jax_world() -> Any:
    """Return Target as pure functions, as a user's module does."""
    import jax.numpy as jnp

    from hpcrl.rl.envs.jax.world import World

    def step(state: Any, action: Any) -> Any:
        return state, -((action[0] - 0.7) ** 2) - (action[1] + 0.4) ** 2, jnp.bool_(True)

    return World(1, 2, lambda key: jnp.zeros(1), step)


def trained(
    framework: str, execution: str, make_environment: Callable[[], Any], steps: int = SETTINGS.total_steps
) -> tuple[dict[str, Weights], float | None]:
    """Return the weights of actor and critic after a training, and the last score."""
    if framework == "torch":
        import torch

        torch._dynamo.reset()
    run = Run(3, Silent(), PhaseClock())
    settings = replace(SETTINGS, total_steps=steps, evaluation_interval=steps)
    training = make_training("vpg", settings, framework, execution, make_environment, run)
    result = train(training)
    return {group: training.learner.weights(group) for group in ("actor", "critic")}, result.final_score


def strays_when_fused() -> float:
    """Return how far the weights stray from the specification's after one rollout that is learnt from, in which episodes are cut off."""
    import jax

    from hpcrl.rl.envs.jax.registry import world_of
    from hpcrl.rl.frameworks.jax.fused_rollout import rollout

    settings = replace(
        SETTINGS, environments=4, rollout_steps=40, total_steps=160, gamma=0.99, value_learning_rate=3e-3
    )
    make = partial(gymnasium_environment, "CartPole-v1", 15)
    training = make_training("vpg", settings, "jax", "fused", make, Run(3, Silent(), PhaseClock()))
    learner: Any = training.learner
    loop: Any = training.loop
    reference = exact(training.algorithm, {group: learner.weights(group) for group in ("actor", "critic")})
    carry = loop._carry()
    _, exploring, _ = jax.random.split(jax.random.wrap_key_data(carry.environments.key), 3)
    vectors = [carry.vectors["actor"], carry.vectors["critic"]]
    _, (taken, _) = rollout(learner, *world_of(make()), vectors, carry.environments, exploring)
    taken = taken._replace(**{name: np.array(value) for name, value in taken._asdict().items()})
    flat = Rollout(40, 4, 4)
    for name in ("rewards", "values", "terminated", "ended"):
        getattr(flat, name)[:] = getattr(taken, name)
    flat.following[:] = learner.sample(taken.last.reshape(160, 4), np.zeros((160, 2), np.float32))[2].reshape(40, 4)
    gains, returns = (advantages(flat, flat.following[-1], 0.99, each) for each in (settings.gae_lambda, 1.0))
    assert (taken.ended & ~taken.terminated).any()
    batch = (
        taken.observations.reshape(160, 4), taken.actions.reshape(160),
        ((gains - gains.mean()) / gains.std()).reshape(160), (returns + flat.values).reshape(160),
    )  # fmt: skip
    reference.update("policy", batch, settings.learning_rate)
    for _ in range(settings.value_steps):
        reference.update("value", batch, settings.value_learning_rate)
    assert loop.advance(160, lambda: False)
    return max(stray(reference, learner, group) for group in ("actor", "critic"))


def noise_when_fused() -> NDArray[np.float64]:
    """Return the noise (n, 2) of continuous actions in a rollout: what they are from the means, in standard deviations."""
    import jax

    from hpcrl.rl.envs.jax.registry import world_of
    from hpcrl.rl.frameworks.jax.fused_rollout import rollout

    settings = replace(SETTINGS, environments=20, rollout_steps=100, total_steps=2_000)
    training = make_training("vpg", settings, "jax", "fused", PureTarget, Run(3, Silent(), PhaseClock()))
    learner: Any = training.learner
    loop: Any = training.loop
    carry = loop._carry()
    vectors = [carry.vectors["actor"], carry.vectors["critic"]]
    _, (taken, _) = rollout(learner, *world_of(PureTarget()), vectors, carry.environments, jax.random.key(1))
    actions, shown = np.asarray(taken.actions, float), np.asarray(taken.observations)
    noise = (actions.reshape(-1, 2) - learner.act(shown.reshape(-1, 1))) / np.exp(settings.initial_log_std)
    return np.asarray(noise, float)


def known(framework: str, execution: str, part: str) -> dict[str, Any]:
    # JAX has no Target.
    environment: Any = partial(Probe, 5) if execution == "fused" else Target
    score = trained(framework, execution, environment)[1]
    first, second = (trained(framework, execution, environment, 500)[0] for _ in range(2))
    facts: dict[str, Any] = {
        "target": score,
        "identical": all(
            np.array_equal(array, second[group][name]) for group in first for name, array in first[group].items()
        ),
    }
    if part == "whole":
        discounted = trained(framework, execution, partial(Probe, 3))[0]["critic"]
        shown = np.array([[0.0], [1.0]], np.float32)
        facts["discounted"] = forward(discounted, shown, "tanh")[-1][:, 0].tolist()
        facts["better"] = trained(framework, execution, partial(Probe, 5))[1]
    if execution == "fused":
        facts["strays"] = strays_when_fused()
        noise = noise_when_fused()
        facts["noise"] = {"means": noise.mean(0).tolist(), "deviations": noise.std(0).tolist()}
        facts["continuous"] = trained(framework, execution, PureTarget, 10_000)[1]
        compiled = make_vector("compiled", PureTarget, 2)
        compiled.reset([1, 2])
        facts["rewards"] = compiled.step(np.array([[0.7, -0.4], [0.7, 0.6]], np.float32)).rewards.tolist()
    return facts
