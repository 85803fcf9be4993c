"""DQN in JAX with a Flax network. Lazy mode jits the whole update; eager mode is the same plain functions, un-jitted."""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from hpcrl.errors import UsageError
from hpcrl.rl.learner import Batch, Network, Weights


class Mlp(nn.Module):
    """Dense layers with ReLU between them; Q values (n, actions) from observations (n, inputs)."""

    sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for layer, size in enumerate(self.sizes):
            x = nn.Dense(size, name=f"layers_{layer}")(x)
            if layer < len(self.sizes) - 1:
                x = nn.relu(x)
        return x


def to_tree(weights: Weights) -> dict[str, Any]:
    """Turn hpcrl's flat weights, (out, in), into Flax's tree, whose kernels are (in, out)."""
    layers = len(weights) // 2
    return {
        "params": {
            f"layers_{layer}": {
                "kernel": jnp.asarray(weights[f"layers.{layer}.weight"].T, jnp.float32),
                "bias": jnp.asarray(weights[f"layers.{layer}.bias"], jnp.float32),
            }
            for layer in range(layers)
        }
    }


def to_flat(tree: dict[str, Any]) -> Weights:
    """Turn Flax's tree back into hpcrl's flat weights."""
    flat: Weights = {}
    for layer in range(len(tree["params"])):
        entry = tree["params"][f"layers_{layer}"]
        flat[f"layers.{layer}.weight"] = np.asarray(entry["kernel"]).T.copy()
        flat[f"layers.{layer}.bias"] = np.asarray(entry["bias"]).copy()
    return flat


def dqn_loss(
    weights: Any,
    target: Any,
    batch: tuple[jax.Array, ...],
    network: Mlp,
    gamma: float,
    kind: str,
    double: bool,
) -> jax.Array:
    """Return the mean Huber or squared error of Q(s, a); see hpcrl.rl.frameworks.numpy.dqn for the formulae."""
    observations, actions, rewards, following, terminated = batch
    values = network.apply(target, following)
    if double:
        chosen_next = network.apply(weights, following).argmax(1)
        best = jnp.take_along_axis(values, chosen_next[:, None], 1)[:, 0]
    else:
        best = values.max(1)
    wanted = jax.lax.stop_gradient(rewards + gamma * (1 - terminated) * best)
    chosen = jnp.take_along_axis(network.apply(weights, observations), actions[:, None], 1)[:, 0]
    errors = chosen - wanted
    return (optax.huber_loss(errors) if kind == "huber" else errors**2).mean()


class JaxDqn:
    """The learner, on the CPU or one GPU."""

    def __init__(
        self,
        network: Network,
        weights: Weights,
        *,
        lazy: bool = False,
        device: str = "cpu",
        gamma: float = 0.99,
        max_gradient_norm: float = 10.0,
        loss: str = "huber",
        double: bool = False,
        adam_epsilon: float = 1e-8,
    ) -> None:
        if device == "cuda" and jax.default_backend() != "gpu":
            raise UsageError(
                "jax: this cell asks for a GPU, and JAX sees none here: it does not run on the CPU instead"
            )
        jax.config.update("jax_default_matmul_precision", "highest")
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self._lazy = lazy
        module = Mlp((*network.hidden, network.outputs))
        adam = optax.scale_by_adam(b1=0.9, b2=0.999, eps=adam_epsilon)
        self._online = to_tree(weights)
        self._target = jax.tree.map(jnp.copy, self._online)
        self._adam = adam.init(self._online)

        def step(
            online: Any, state: Any, target: Any, batch: tuple[jax.Array, ...], rate: jax.Array
        ) -> tuple[Any, Any]:
            gradients = jax.grad(dqn_loss)(online, target, batch, module, gamma, loss, double)
            if max_gradient_norm:
                factor = jnp.minimum(1.0, max_gradient_norm / (optax.global_norm(gradients) + 1e-6))
                gradients = jax.tree.map(lambda each: each * factor, gradients)
            direction, state = adam.update(gradients, state)
            return jax.tree.map(lambda each, change: each - rate * change, online, direction), state

        def greedy(online: Any, observations: jax.Array) -> jax.Array:
            return module.apply(online, observations).argmax(1)

        self._step: Any = partial(jax.jit, donate_argnums=(0, 1))(step) if lazy else step
        self._greedy: Any = jax.jit(greedy) if lazy else greedy

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        return np.asarray(self._greedy(self._online, observations))

    def update(self, batch: Batch, learning_rate: float) -> None:
        arrays = (batch.observations, batch.actions, batch.rewards, batch.next_observations, batch.terminated)
        self._online, self._adam = self._step(self._online, self._adam, self._target, arrays, np.float32(learning_rate))

    def sync_target(self) -> None:
        # A copy: the update gives its own buffers away.
        self._target = jax.tree.map(jnp.copy, self._online)

    def synchronize(self) -> None:
        jax.block_until_ready(self._online)

    def compiled(self) -> str:
        if not self._lazy:
            return "nothing: eager, not jitted"
        return f"jax.jit: {self._step._cache_size()} update programs, {self._greedy._cache_size()} acting programs"

    def weights(self) -> Weights:
        return to_flat(self._online)

    def state(self) -> Weights:
        state: Weights = {"steps": np.array([int(self._adam.count)], np.float64)}
        for kind, tree in (
            ("online", self._online),
            ("target", self._target),
            ("first", self._adam.mu),
            ("second", self._adam.nu),
        ):
            state |= {f"{kind}.{name}": each for name, each in to_flat(tree).items()}
        return state

    def load_state(self, state: Weights) -> None:
        def tree(kind: str) -> Any:
            return to_tree(
                {name.removeprefix(f"{kind}."): each for name, each in state.items() if name.startswith(f"{kind}.")}
            )

        self._online, self._target = tree("online"), tree("target")
        self._adam = self._adam._replace(
            count=jnp.asarray(int(state["steps"][0]), jnp.int32), mu=tree("first"), nu=tree("second")
        )
