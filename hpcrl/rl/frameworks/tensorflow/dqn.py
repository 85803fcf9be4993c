"""DQN in TensorFlow on plain variables. Lazy mode is tf.function of the whole update; `xla` compiles that with XLA."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcrl.rl import checkpoint
from hpcrl.rl.frameworks.tensorflow import optimizers, runtime
from hpcrl.rl.learner import Batch, Collective, DqnSettings, Network, Weights, weight_names

Tensors = list[Any]


def q_values(weights: Tensors, observations: Any, dueling: bool) -> Any:
    """Return Q (n, actions); `weights` alternates kernel (in, out) and bias (out,)."""
    x = observations
    for layer in range(0, len(weights), 2):
        x = tf.matmul(x, weights[layer]) + weights[layer + 1]
        if layer < len(weights) - 2:
            x = tf.nn.relu(x)
    return combine(x) if dueling else x


def combine(output: Any) -> Any:
    """Return Q (n, actions) of value and advantages (n, 1 + actions): Q = V + A - mean(A)."""
    advantages = output[:, 1:]
    return output[:, :1] + advantages - tf.reduce_mean(advantages, axis=1, keepdims=True)


def dqn_loss(
    weights: Tensors, target: Tensors, batch: Tensors, gamma: float, kind: str, double: bool, dueling: bool = False
) -> Any:
    """Return the mean Huber or squared error of Q(s, a); see hpcrl.rl.frameworks.numpy.dqn for the formulae."""
    observations, actions, rewards, following, terminated = batch
    values = q_values(target, following, dueling)
    if double:
        chosen_next = tf.argmax(q_values(weights, following, dueling), axis=1)
        best = tf.gather(values, chosen_next, batch_dims=1)
    else:
        best = tf.reduce_max(values, axis=1)
    wanted = tf.stop_gradient(rewards + gamma * (1 - terminated) * best)
    errors = tf.gather(q_values(weights, observations, dueling), actions, batch_dims=1) - wanted
    if kind == "huber":
        size = tf.abs(errors)
        return tf.reduce_mean(tf.where(size <= 1, errors * errors / 2, size - 0.5))
    return tf.reduce_mean(errors * errors)


def framework_weights(network: Network, seed: int) -> Weights:
    """Draw initial weights as keras.layers.Dense does: Glorot uniform kernels, zero biases."""
    weights: Weights = {}
    for layer, (inputs, outputs) in enumerate(zip(network.sizes, network.sizes[1:], strict=False)):
        kernel = tf.keras.initializers.GlorotUniform(seed=seed + layer)((inputs, outputs))
        weights[f"layers.{layer}.weight"] = np.asarray(kernel).T.copy()
        weights[f"layers.{layer}.bias"] = np.zeros(outputs, np.float32)
    return weights


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
        self._execution = execution
        self._names = weight_names(network)
        first = [weights[name].T.astype(np.float32) for name in self._names]
        self._online = [tf.Variable(each) for each in first]
        self._target = [tf.Variable(each, trainable=False) for each in first]
        self._optimizer = optimizers.make(self._online, settings)
        maybe_compile = runtime.compiler(execution)
        dueling = network.dueling

        def gradient(batch: Tensors) -> Any:
            with tf.GradientTape() as tape:
                loss = dqn_loss(
                    self._online, self._target, batch, settings.gamma, settings.loss, settings.double, dueling
                )
            return tf.concat([tf.reshape(each, [-1]) for each in tape.gradient(loss, self._online)], 0)

        def apply(change: Any, numbers: Any) -> None:
            if settings.max_gradient_norm:
                norm = tf.sqrt(tf.reduce_sum(change * change))
                change = change * tf.minimum(1.0, settings.max_gradient_norm / (norm + 1e-6))
            self._optimizer.apply(change, numbers)

        def step(batch: Tensors, numbers: Any) -> None:
            apply(gradient(batch), numbers)

        def greedy(observations: Any) -> Any:
            return tf.argmax(q_values(self._online, observations, dueling), axis=1)

        def sync() -> None:
            for target, online in zip(self._target, self._online, strict=True):
                target.assign(online)

        self._greedy, self._sync = maybe_compile(greedy), maybe_compile(sync)
        if collective is None:
            self._counted = self._step = maybe_compile(step)
        else:
            compiled_gradient, compiled_apply = maybe_compile(gradient), maybe_compile(apply)
            self._counted = compiled_gradient
            self._step = lambda batch, numbers: compiled_apply(collective.average(compiled_gradient(batch)), numbers)

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        actions: NDArray[np.int64] = self._greedy(tf.convert_to_tensor(observations)).numpy()
        return actions

    def transfer(self, batch: Batch) -> Tensors:
        arrays = (batch.observations, batch.actions, batch.rewards, batch.next_observations, batch.terminated)
        return [tf.convert_to_tensor(each) for each in arrays]

    def update(self, batch: Tensors, learning_rate: float) -> None:
        self._step(batch, tf.convert_to_tensor(self._optimizer.numbers(learning_rate)))

    def sync_target(self) -> None:
        self._sync()

    def synchronize(self) -> None:
        # Reading the newest value waits for all of its dependencies.
        self._online[-1].numpy()

    def compiled(self) -> str:
        return runtime.compiled(self._execution, self._counted, self._greedy)

    def peak_memory(self) -> int | None:
        return runtime.peak_memory()

    def weights(self) -> Weights:
        return self._named(self._online)

    def _named(self, variables: Tensors) -> Weights:
        return {name: each.numpy().T.copy() for name, each in zip(self._names, variables, strict=True)}

    def state(self) -> Weights:
        slots = {str(number): each.numpy() for number, each in enumerate(self._optimizer.slots())}
        return {
            "steps": np.array([self._optimizer.steps], np.float64),
            **checkpoint.nested("online", self._named(self._online)),
            **checkpoint.nested("target", self._named(self._target)),
            **checkpoint.nested("optimizer", slots),
        }

    def load_state(self, state: Weights) -> None:
        self._optimizer.restore(int(state["steps"][0]))
        for kind, variables in (("online", self._online), ("target", self._target)):
            for name, variable in zip(self._names, variables, strict=True):
                variable.assign(state[f"{kind}/{name}"].T)
        for number, slot in enumerate(self._optimizer.slots()):
            slot.assign(state[f"optimizer/{number}"])
