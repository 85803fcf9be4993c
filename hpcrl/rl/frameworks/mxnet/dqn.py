"""DQN in MXNet Gluon. Lazy mode hybridizes networks and loss as one graph with static allocation; eager is imperative."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from numpy.typing import NDArray

from hpcrl.rl import checkpoint
from hpcrl.rl.frameworks.mxnet import optimizers, runtime
from hpcrl.rl.learner import Batch, Collective, DqnSettings, Network, Weights, weight_names


class QNetwork(gluon.HybridBlock):
    """Dense layers with ReLU between them; Q values (n, actions) from observations (n, inputs)."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._dueling = network.dueling
        self.layers = gluon.nn.HybridSequential()
        for layer, (inputs, outputs) in enumerate(zip(network.sizes, network.sizes[1:], strict=False)):
            activation = "relu" if layer < network.layers - 1 else None
            self.layers.add(gluon.nn.Dense(outputs, activation, in_units=inputs, flatten=False))

    def hybrid_forward(self, F: Any, observations: Any) -> Any:
        output = self.layers(observations)
        return combine(F, output) if self._dueling else output

    def arrays(self) -> list[Any]:
        """Return weight (out, in) and bias (out,) of each layer."""
        return [each.data() for layer in self.layers for each in (layer.weight, layer.bias)]

    def gradients(self) -> list[Any]:
        """Return the gradients in the order of `arrays`."""
        return [each.grad() for layer in self.layers for each in (layer.weight, layer.bias)]


def combine(F: Any, output: Any) -> Any:
    """Return Q (n, actions) of value and advantages (n, 1 + actions): Q = V + A - mean(A)."""
    value = F.slice_axis(output, axis=1, begin=0, end=1)
    advantages = F.slice_axis(output, axis=1, begin=1, end=None)
    return F.broadcast_add(value, F.broadcast_sub(advantages, F.mean(advantages, axis=1, keepdims=True)))


def dqn_error(F: Any, chosen: Any, rewards: Any, best: Any, terminated: Any, gamma: float, kind: str) -> Any:
    """Return the mean Huber or squared error of Q(s, a) (n,); see hpcrl.rl.frameworks.numpy.dqn for the formulae."""
    errors = chosen - F.BlockGrad(rewards + gamma * (1 - terminated) * best)
    return F.mean(F.smooth_l1(errors, scalar=1.0) if kind == "huber" else errors * errors)


class DqnLoss(gluon.HybridBlock):
    """The loss of a batch, both networks included."""

    def __init__(self, online: QNetwork, target: QNetwork, settings: DqnSettings) -> None:
        super().__init__()
        self.online, self.target = online, target
        self._settings = settings

    def hybrid_forward(
        self, F: Any, observations: Any, actions: Any, rewards: Any, following: Any, terminated: Any
    ) -> Any:
        # Not recorded in imperative mode: the backward pass through argmax and duelling crashes MXNet.
        with autograd.pause():
            values = self.target(following)
            if self._settings.double:
                best = F.pick(values, F.argmax(self.online(following), axis=1), axis=1)
            else:
                best = F.max(values, axis=1)
        chosen = F.pick(self.online(observations), actions, axis=1)
        return dqn_error(F, chosen, rewards, best, terminated, self._settings.gamma, self._settings.loss)


class _Greedy(gluon.HybridBlock):
    def __init__(self, online: QNetwork) -> None:
        super().__init__()
        self.online = online

    def hybrid_forward(self, F: Any, observations: Any) -> Any:
        return F.argmax(self.online(observations), axis=1)


def framework_weights(network: Network, seed: int) -> Weights:
    """Draw initial weights as Gluon's default initialiser does: Uniform(0.07), zero biases."""
    mx.random.seed(seed)
    net = QNetwork(network)
    net.initialize(mx.init.Uniform())
    return dict(zip(weight_names(network), (each.asnumpy() for each in net.arrays()), strict=True))


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
        self._context = runtime.check_device(device)
        self._lazy = execution == "lazy"
        self._collective = collective
        self._clip = settings.max_gradient_norm
        self._names = weight_names(network)
        online, target = QNetwork(network), QNetwork(network)
        for net in (online, target):
            net.initialize(mx.init.Zero(), ctx=self._context)
            for array, name in zip(net.arrays(), self._names, strict=True):
                array[:] = weights[name].astype(np.float32)
        target.collect_params().setattr("grad_req", "null")
        self._gradients = online.gradients()
        self._online, self._target = online.arrays(), target.arrays()
        self._optimizer = optimizers.make(self._online, settings)
        self._loss, self._greedy = DqnLoss(online, target, settings), _Greedy(online)
        if self._lazy:
            self._loss.hybridize(static_alloc=True, static_shape=True)
            self._greedy.hybridize(static_alloc=True)

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        actions: NDArray[np.int64] = self._greedy(self._array(observations)).asnumpy().astype(np.int64)
        return actions

    def _array(self, values: NDArray[Any]) -> Any:
        return mx.nd.array(values, ctx=self._context, dtype=np.float32)

    def transfer(self, batch: Batch) -> list[Any]:
        arrays = (batch.observations, batch.actions, batch.rewards, batch.next_observations, batch.terminated)
        return [self._array(each) for each in arrays]

    def update(self, batch: list[Any], learning_rate: float) -> None:
        with autograd.record():
            loss = self._loss(*batch)
        loss.backward()
        gradients = self._gradients
        if self._collective is not None:
            flat = mx.nd.concat(*[each.reshape(-1) for each in gradients], dim=0)
            gradients = self._split(self._collective.average(flat))
        optimizers.clip(gradients, self._clip)
        self._optimizer.apply(self._online, gradients, learning_rate)

    def _split(self, flat: Any) -> list[Any]:
        parts, start = [], 0
        for each in self._online:
            parts.append(flat[start : start + each.size].reshape(each.shape))
            start += each.size
        return parts

    def sync_target(self) -> None:
        for target, online in zip(self._target, self._online, strict=True):
            online.copyto(target)

    def synchronize(self) -> None:
        mx.nd.waitall()

    def compiled(self) -> str:
        return runtime.compiled(self._lazy, {"update": self._loss, "acting": self._greedy})

    def peak_memory(self) -> int | None:
        return None  # MXNet's pool reports no peak

    def weights(self) -> Weights:
        return {name: each.asnumpy() for name, each in zip(self._names, self._online, strict=True)}

    def state(self) -> Weights:
        state: Weights = {"steps": np.array([self._optimizer.steps], np.float64)}
        for kind, arrays in self._parts().items():
            state |= checkpoint.nested(kind, {name: each.asnumpy() for name, each in arrays.items()})
        return state

    def load_state(self, state: Weights) -> None:
        self._optimizer.restore(int(state["steps"][0]))
        for kind, arrays in self._parts().items():
            for name, each in checkpoint.part(kind, state).items():
                arrays[name][:] = each

    def _parts(self) -> dict[str, dict[str, Any]]:
        slots = {str(number): each for number, each in enumerate(self._optimizer.slots())}
        return {
            "online": dict(zip(self._names, self._online, strict=True)),
            "target": dict(zip(self._names, self._target, strict=True)),
            "optimizer": slots,
        }
