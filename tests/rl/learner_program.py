"""Run in a framework's own environment: what one of its modes does where the answer is known, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from hpcrl.rl.algorithms.dqn import DqnConfig, train
from hpcrl.rl.envs.probes import Probe
from hpcrl.rl.frameworks import framework_weights, make_dqn_learner
from hpcrl.rl.frameworks.numpy.dqn import loss_and_gradients, targets
from hpcrl.rl.learner import Batch, DqnLearner, DqnSettings, Network, Weights, initial_weights
from hpcrl.rl.smoke import CONFIG, _Silent, learn
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.parity_program import batch

NETWORK = Network(4, (120, 84), 2)


def fresh(framework: str) -> None:
    """Forget what torch compiled: it keeps few programs for one function, and a cell has one learner."""
    if framework == "torch":
        import torch

        torch._dynamo.reset()


def learned(framework: str, execution: str, probe: int, **changes: Any) -> float:
    fresh(framework)
    return learn(framework, execution, probe, **changes)


def losses(framework: str, execution: str) -> dict[str, float]:
    """Two transitions of linear networks Q(s) = w s on s = 1: online (2, 1), target (3, 5); the second is terminal."""
    online: Weights = {
        "layers.0.weight": np.array([[2.0], [1.0]], np.float32),
        "layers.0.bias": np.zeros(2, np.float32),
    }
    target: Weights = {
        "layers.0.weight": np.array([[3.0], [5.0]], np.float32),
        "layers.0.bias": np.zeros(2, np.float32),
    }
    ones = np.ones((2, 1), np.float32)
    given = (ones, np.array([0, 0]), np.array([1, 1], np.float32), ones, np.array([0, 1], np.float32))
    found = {}
    for kind in ("huber", "mse"):
        for double in (False, True):
            fresh(framework)
            found[f"{kind} {double}"] = _loss(framework, execution, online, target, given, kind, double)
    return found


def _loss(
    framework: str, execution: str, online: Weights, target: Weights, given: Any, kind: str, double: bool
) -> float:
    order = ("layers.0.weight", "layers.0.bias")
    if framework == "torch":
        import torch

        from hpcrl.rl.frameworks.torch import dqn as torch_dqn
        from hpcrl.rl.frameworks.torch import runtime as torch_runtime

        function = torch_runtime.compiler(execution == "lazy")(torch_dqn.dqn_loss)
        weights, others = ([torch.tensor(each[name]) for name in order] for each in (online, target))
        return float(function(weights, others, [torch.tensor(each) for each in given], 0.5, kind, double))
    if framework == "tensorflow":
        import tensorflow as tf

        from hpcrl.rl.frameworks.tensorflow import dqn as tf_dqn
        from hpcrl.rl.frameworks.tensorflow import runtime as tf_runtime

        function = tf_runtime.compiler(execution)(tf_dqn.dqn_loss)
        weights, others = ([tf.constant(each[name].T) for name in order] for each in (online, target))
        return float(function(weights, others, [tf.constant(each) for each in given], 0.5, kind, double))
    if framework == "jax":
        import jax

        from hpcrl.rl.frameworks.jax import dqn as jax_dqn

        def loss(weights: Any, others: Any) -> Any:
            return jax_dqn.dqn_loss(lambda w, s: s @ w.T, weights, others, given, 0.5, kind, double)

        name = "layers.0.weight"
        return float((jax.jit(loss) if execution != "eager" else loss)(online[name], target[name]))
    if framework == "mxnet":
        import mxnet as mx

        from hpcrl.rl.frameworks.mxnet import dqn as mx_dqn

        nets = []
        for values in (online, target):
            net = mx_dqn.QNetwork(Network(1, (), 2))
            net.initialize()
            for array, name in zip(net.arrays(), order, strict=True):
                array[:] = values[name]
            nets.append(net)
        block = mx_dqn.DqnLoss(*nets, DqnSettings(gamma=0.5, loss=kind, double=double))
        if execution == "lazy":
            block.hybridize(static_alloc=True, static_shape=True)
        return float(block(*[mx.nd.array(each, dtype=np.float32) for each in given]).asscalar())
    content = Batch(*given)
    return loss_and_gradients(online, content, targets(online, target, content, 0.5, double), kind)[0]


def runs_twice(framework: str, execution: str) -> bool:
    """Train twice from one seed and compare the last weights bit by bit."""
    ends = []
    for _ in range(2):
        fresh(framework)
        learners: list[DqnLearner] = []

        def make(network: Network, stream: np.random.Generator, kept: list[DqnLearner] = learners) -> DqnLearner:
            weights = dict(initial_weights(network, stream))
            kept.append(make_dqn_learner(framework, execution, network, weights, CONFIG.learner_settings()))
            return kept[0]

        train(CONFIG, lambda: Probe(5), make, 3, _Silent(), PhaseClock())
        ends.append(learners[0].weights())
    return all(each.tobytes() == ends[1][name].tobytes() for name, each in ends[0].items())


def diverges(framework: str, execution: str) -> str:
    """Train with a learning rate that no weight survives."""
    config = DqnConfig(**{**vars(CONFIG), "learning_rate": 1e38, "loss": "mse", "max_gradient_norm": 0.0})

    def make(network: Network, stream: np.random.Generator) -> DqnLearner:
        weights = dict(initial_weights(network, stream))
        return make_dqn_learner(framework, execution, network, weights, config.learner_settings())

    return train(config, lambda: Probe(2), make, 1, _Silent(), PhaseClock()).outcome


def first_steps(framework: str, execution: str) -> dict[str, float]:
    """How far the framework's own optimisers stray in their first step from the formula that they are said to have."""
    draw = np.random.default_rng(0)
    weights = dict(initial_weights(NETWORK, draw))
    given, rate = batch(draw), 2.5e-4
    exact = {name: each.astype(np.float64) for name, each in weights.items()}
    wanted = targets(exact, exact, given, 0.99, False)
    gradients = loss_and_gradients(exact, given, wanted, "mse")[1]
    hat = {"tensorflow": 1e-7, "mxnet": 1e-8}.get(framework)
    found = {}
    for optimizer in ("adam", "rmsprop"):
        fresh(framework)
        settings = DqnSettings(defaults="framework", optimizer=optimizer, loss="mse", max_gradient_norm=0.0)
        learner = make_dqn_learner(framework, execution, NETWORK, weights, settings)
        learner.update(learner.transfer(given), rate)
        restored = make_dqn_learner(framework, execution, NETWORK, weights, settings)
        restored.load_state({name: np.array(each) for name, each in learner.state().items()})
        strays = []
        for name, gradient in gradients.items():
            size = np.abs(gradient)
            if optimizer == "adam":
                step = gradient / (size + (hat / np.sqrt(1 - 0.999) if hat else 1e-8))
            elif framework == "torch":
                step = gradient / (np.sqrt(0.01) * size + 1e-8)
            else:
                step = gradient / np.sqrt(0.1 * size**2 + (1e-7 if framework == "tensorflow" else 1e-8))
            strays.append(np.abs(exact[name] - rate * step - learner.weights()[name]).max() / rate)
        found[optimizer] = float(max(strays))
        learner.update(learner.transfer(given), rate)
        restored.update(restored.transfer(given), rate)
        same = all((each == restored.weights()[name]).all() for name, each in learner.weights().items())
        found[f"{optimizer} restored"] = float(same)
    return found


def main(framework: str, execution: str) -> None:
    facts: dict[str, Any] = {
        "probes": [learned(framework, execution, number) for number in range(1, 6)],
        "probes with everything": learned(
            framework, execution, 5, double=True, dueling=True, optimizer="rmsprop", optimizer_epsilon=1e-4, loss="mse"
        ),
        "identical": runs_twice(framework, execution),
        "diverged": diverges(framework, execution),
    }
    if execution != "fused":
        facts["losses"] = losses(framework, execution)
        facts["acting in NumPy"] = learned(framework, execution, 5, acting="numpy")
    if framework != "numpy" and execution != "fused":
        facts["first steps"] = first_steps(framework, execution)
        facts["first weights"] = float(framework_weights(framework, NETWORK, 1)["layers.0.weight"].std())
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
