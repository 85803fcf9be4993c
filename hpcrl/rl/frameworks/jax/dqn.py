"""DQN in JAX with a Flax network. Lazy mode jits the whole update; eager mode runs the same functions without jit.

The weights are one flat vector: each call passes fewer buffers, and eager mode needs few operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from hpcrl.rl import checkpoint
from hpcrl.rl.frameworks.jax import runtime
from hpcrl.rl.learner import Batch, Collective, DqnSettings, Network, Weights


class QNetwork(nn.Module):
    """Dense layers with ReLU between them; Q values (n, actions) from observations (n, inputs)."""

    sizes: tuple[int, ...]
    dueling: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for layer, size in enumerate(self.sizes):
            x = nn.Dense(size, name=f"layers_{layer}")(x)
            if layer < len(self.sizes) - 1:
                x = nn.relu(x)
        return combine(x) if self.dueling else x


def combine(output: jax.Array) -> jax.Array:
    """Return Q (n, actions) of value and advantages (n, 1 + actions): Q = V + A - mean(A)."""
    advantages = output[:, 1:]
    return output[:, :1] + advantages - advantages.mean(1, keepdims=True)


def to_tree(weights: Weights) -> dict[str, Any]:
    """Convert hpcrl's flat weights, (out, in), to Flax's tree with kernels (in, out)."""
    return {
        "params": {
            f"layers_{layer}": {
                "kernel": jnp.asarray(weights[f"layers.{layer}.weight"].T, jnp.float32),
                "bias": jnp.asarray(weights[f"layers.{layer}.bias"], jnp.float32),
            }
            for layer in range(len(weights) // 2)
        }
    }


def to_flat(tree: dict[str, Any]) -> Weights:
    """Convert Flax's tree back to hpcrl's flat weights."""
    flat: Weights = {}
    for layer in range(len(tree["params"])):
        entry = tree["params"][f"layers_{layer}"]
        flat[f"layers.{layer}.weight"] = np.asarray(entry["kernel"]).T.copy()
        flat[f"layers.{layer}.bias"] = np.asarray(entry["bias"]).copy()
    return flat


def dqn_loss(
    q: Callable[[Any, jax.Array], jax.Array],
    weights: Any,
    target: Any,
    batch: tuple[jax.Array, ...],
    gamma: float,
    kind: str,
    double: bool,
) -> jax.Array:
    """Return the mean Huber or squared error of q(weights, s)[a]; see hpcrl.rl.frameworks.numpy.dqn for the formulae."""
    observations, actions, rewards, following, terminated = batch
    values = q(target, following)
    if double:
        chosen_next = q(weights, following).argmax(1)
        best = jnp.take_along_axis(values, chosen_next[:, None], 1)[:, 0]
    else:
        best = values.max(1)
    wanted = jax.lax.stop_gradient(rewards + gamma * (1 - terminated) * best)
    chosen = jnp.take_along_axis(q(weights, observations), actions[:, None], 1)[:, 0]
    errors = chosen - wanted
    return (optax.huber_loss(errors) if kind == "huber" else errors**2).mean()


def clip(gradient: jax.Array, most: float) -> jax.Array:
    """Scale a flat gradient so that its norm is at most `most` (0: never)."""
    return gradient * jnp.minimum(1.0, most / (jnp.linalg.norm(gradient) + 1e-6)) if most else gradient


def make_optimizer(settings: DqnSettings) -> optax.GradientTransformation:
    """Return the direction of an update without its learning rate: the aligned formula, or optax's own."""
    own = settings.defaults == "framework"
    if settings.optimizer == "adam":
        return optax.scale_by_adam() if own else optax.scale_by_adam(b1=0.9, b2=0.999, eps=settings.optimizer_epsilon)
    if own:
        return optax.scale_by_rms()
    return optax.scale_by_rms(decay=settings.rmsprop_decay, eps=settings.optimizer_epsilon, eps_in_sqrt=False)


def framework_weights(network: Network, seed: int) -> Weights:
    """Draw initial weights as flax.linen.Dense does: LeCun normal kernels, zero biases."""
    module = QNetwork(network.sizes[1:], network.dueling)
    return to_flat(module.init(jax.random.key(seed), jnp.zeros((1, network.inputs))))


class Learner:
    """The learner, on the CPU or one GPU."""

    def __init__(
        self,
        network: Network,
        weights: Weights,
        settings: DqnSettings,
        execution: str = "eager",
        device: str = "cpu",
        collective: Collective | None = None,
    ) -> None:
        runtime.check_device(device)
        self._lazy = execution != "eager"
        module = QNetwork(network.sizes[1:], network.dueling)
        optimizer = make_optimizer(settings)
        self._device = jax.local_devices()[0]
        tree = to_tree(weights)
        flat, unravel = ravel_pytree(tree)
        leaves, self._structure = jax.tree.flatten(tree)
        self._shapes = [leaf.shape for leaf in leaves]
        self._cuts = np.cumsum([leaf.size for leaf in leaves])[:-1]
        self._online = self._put(flat)
        self._target = jnp.copy(self._online)
        self._slots = self._put(optimizer.init(self._online))
        self._steps = 0

        def q(flat: jax.Array, observations: jax.Array) -> jax.Array:
            return module.apply(unravel(flat), observations)

        def gradient(online: jax.Array, target: jax.Array, batch: tuple[jax.Array, ...]) -> jax.Array:
            def loss(flat: jax.Array) -> jax.Array:
                return dqn_loss(q, flat, target, batch, settings.gamma, settings.loss, settings.double)

            return jax.grad(loss)(online)

        def apply(online: jax.Array, slots: Any, change: jax.Array, rate: jax.Array) -> tuple[jax.Array, Any]:
            direction, slots = optimizer.update(clip(change, settings.max_gradient_norm), slots)
            return online - rate * direction, slots

        def step(
            online: jax.Array, slots: Any, target: jax.Array, batch: tuple[jax.Array, ...], rate: jax.Array
        ) -> tuple[jax.Array, Any]:
            return apply(online, slots, gradient(online, target, batch), rate)

        def greedy(online: jax.Array, observations: jax.Array) -> jax.Array:
            return q(online, observations).argmax(1)

        self.pure_step, self.pure_greedy = step, greedy  # `fused` scans over these
        self._fused = execution == "fused"
        self._greedy: Any = jax.jit(greedy) if self._lazy else greedy
        if collective is None:
            self._step: Any = jax.jit(step, donate_argnums=(0, 1)) if self._lazy else step
            self._counted: Any = self._step
        else:
            compiled_gradient: Any = jax.jit(gradient) if self._lazy else gradient
            compiled_apply: Any = jax.jit(apply, donate_argnums=(0, 1)) if self._lazy else apply
            self._counted = compiled_gradient
            self._step = lambda online, slots, target, batch, rate: compiled_apply(
                online, slots, collective.average(compiled_gradient(online, target, batch)), rate
            )

    def make_loop(self, *arguments: Any) -> Any:
        """Return the compiled loop of `fused`, None in the other modes."""
        from hpcrl.rl.frameworks.jax.fused import FusedLoop

        return FusedLoop(self, *arguments) if self._fused else None

    def parts(self) -> tuple[jax.Array, Any, jax.Array]:
        """Return weights, the optimiser's slots and target weights."""
        return self._online, self._slots, self._target

    def set_parts(self, online: jax.Array, slots: Any, target: jax.Array) -> None:
        """Set the arrays that :meth:`parts` returned."""
        self._online, self._slots, self._target = online, slots, target

    def _put(self, values: Any) -> Any:
        """Commit arrays to the device: for uncommitted arrays a program is compiled again."""
        return jax.device_put(values, self._device)

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        return np.asarray(self._greedy(self._online, observations))

    def transfer(self, batch: Batch) -> tuple[Any, ...]:
        arrays = (batch.observations, batch.actions, batch.rewards, batch.next_observations, batch.terminated)
        # On the CPU, passing NumPy's arrays directly is faster than an explicit transfer.
        return arrays if self._device.platform == "cpu" else tuple(self._put(arrays))

    def update(self, batch: tuple[Any, ...], learning_rate: float) -> None:
        self._steps += 1
        self._online, self._slots = self._step(
            self._online, self._slots, self._target, batch, np.float32(learning_rate)
        )

    def sync_target(self) -> None:
        # A copy, because the update donates its own buffers.
        self._target = jnp.copy(self._online)

    def synchronize(self) -> None:
        jax.block_until_ready(self._online)

    def compiled(self) -> str:
        if not self._lazy:
            return "nothing: eager, not jitted"
        if self._fused:
            return f"jax.jit: environment and updates in one scan, {self._greedy._cache_size()} acting programs"
        return f"jax.jit: {self._counted._cache_size()} update programs, {self._greedy._cache_size()} acting programs"

    def peak_memory(self) -> int | None:
        return runtime.peak_memory()

    def weights(self) -> Weights:
        return self._named(self._online)

    def _named(self, flat: jax.Array) -> Weights:
        # One transfer of the whole vector, split in NumPy: `acting: numpy` calls this after every update.
        leaves = np.split(np.asarray(flat), self._cuts)
        shaped = [leaf.reshape(shape) for leaf, shape in zip(leaves, self._shapes, strict=True)]
        return to_flat(jax.tree.unflatten(self._structure, shaped))

    def state(self) -> Weights:
        slots = {str(number): np.asarray(each) for number, each in enumerate(jax.tree.leaves(self._slots))}
        return {
            "steps": np.array([self._steps], np.float64),
            **checkpoint.nested("online", self.weights()),
            **checkpoint.nested("target", self._named(self._target)),
            **checkpoint.nested("optimizer", slots),
        }

    def load_state(self, state: Weights) -> None:
        self._steps = int(state["steps"][0])
        self._online = self._put(ravel_pytree(to_tree(checkpoint.part("online", state)))[0])
        self._target = self._put(ravel_pytree(to_tree(checkpoint.part("target", state)))[0])
        leaves, structure = jax.tree.flatten(self._slots)
        restored = [jnp.asarray(state[f"optimizer/{number}"], each.dtype) for number, each in enumerate(leaves)]
        self._slots = self._put(jax.tree.unflatten(structure, restored))
