"""What DQN does in one of a framework's modes, where the answer is known."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.rl.envs.probes import Probe
from hpcrl.rl.frameworks import configure, framework_weights
from hpcrl.rl.interfaces import Weights
from hpcrl.rl.make import Training, make_training
from hpcrl.rl.runs import Run
from hpcrl.rl.smoke import SETTINGS, Silent, learn
from hpcrl.rl.specification.dqn import loss_and_gradient
from hpcrl.rl.train import train
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Batch, batch, dqn, first_weights, fresh, learner_of

ALGORITHM = dqn()


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
    given = Batch(ones, np.array([0, 0]), np.array([1, 1], np.float32), ones, np.array([0, 1], np.float32))
    values = {}
    configure(framework)
    for kind in ("huber", "mse"):
        for double in (False, True):
            fresh(framework)
            settings = Settings(gamma=0.5, loss=kind, double=double)
            values[f"{kind} {double}"] = _loss(framework, execution, online, target, given, settings)
    return values


def _loss(framework: str, execution: str, online: Weights, target: Weights, given: Batch, settings: Settings) -> float:
    if framework == "numpy":
        return loss_and_gradient(online, given, settings, target)[0]
    page = importlib.import_module(f"hpcrl.rl.frameworks.{framework}.dqn")
    if framework == "torch":
        import torch

        from hpcrl.rl.frameworks.torch import runtime as torch_runtime

        function = torch_runtime.compiler(execution == "lazy")(page.loss)
        own, uses = ([torch.tensor(array) for array in weights.values()] for weights in (online, target))
        return float(function(own, [torch.tensor(array) for array in given], settings, uses))
    if framework == "tensorflow":
        import tensorflow as tf

        from hpcrl.rl.frameworks.tensorflow import runtime as tf_runtime

        function = tf_runtime.compiler(execution)(lambda own, parts, uses: page.loss(own, parts, settings, uses))
        own, uses = ([tf.constant(array.T) for array in weights.values()] for weights in (online, target))
        return float(function(own, [tf.constant(array) for array in given], uses))
    if framework == "jax":
        import jax

        own, uses = ([array.T for array in weights.values()] for weights in (online, target))

        def loss(own: Any, uses: Any) -> Any:
            return page.loss(own, tuple(given), settings, uses)

        return float((jax.jit(loss) if execution != "eager" else loss)(own, uses))
    import mxnet as mx

    from hpcrl.rl.frameworks.mxnet.layers import Flat, layers
    from hpcrl.rl.frameworks.mxnet.programs import Program
    from hpcrl.rl.frameworks.mxnet.runtime import input_like
    from hpcrl.rl.staging import Staging

    flats = [Flat(weights, mx.cpu(), trainable=True) for weights in (online, target)]

    def call(F: Any, inputs: Any, networks: Any) -> Any:
        own, uses = (layers(values, flat.shapes) for values, flat in zip(networks, flats, strict=True))
        return page.loss(F, own, inputs, settings, uses)

    return float(
        Program(call, flats, execution == "lazy")(Staging(partial(input_like, context=mx.cpu())).put(given))[
            0
        ].asscalar()
    )


def trained(framework: str, execution: str, settings: Settings, probe: int, seed: int) -> tuple[Training, str]:
    """Return a training after its end, and its outcome."""
    run = Run(seed, Silent(), PhaseClock())
    training = make_training("dqn", settings, framework, execution, lambda: Probe(probe), run)
    return training, train(training).outcome


def runs_twice(framework: str, execution: str, settings: Settings) -> bool:
    """Train twice from one seed and compare the last weights bit by bit."""
    ends = []
    for _ in range(2):
        fresh(framework)
        ends.append(trained(framework, execution, settings, 5, 3)[0].learner.weights("online"))
    return all(array.tobytes() == ends[1][name].tobytes() for name, array in ends[0].items())


def diverges(framework: str, execution: str) -> str:
    """Train with a learning rate that no weight survives."""
    settings = replace(SETTINGS, learning_rate=1e38, loss="mse", max_gradient_norm=0.0)
    return trained(framework, execution, settings, 2, 1)[1]


def first_steps(framework: str, execution: str) -> dict[str, float]:
    """How far the framework's own optimisers stray in their first step from the formula that they are said to have."""
    draw = np.random.default_rng(0)
    weights = first_weights(ALGORITHM, draw)
    given, rate = batch(draw), 2.5e-4
    exact = {name: array.astype(np.float64) for name, array in weights["online"].items()}
    gradients = loss_and_gradient(exact, given, Settings(loss="mse"), exact)[1]
    hat = {"tensorflow": 1e-7, "mxnet": 1e-8}.get(framework)
    found = {}
    for optimizer in ("adam", "rmsprop", "sgd"):
        fresh(framework)
        made = dqn(
            Settings(hidden=(120, 84), defaults="framework", optimizer=optimizer, loss="mse", max_gradient_norm=0.0)
        )
        learner = learner_of(framework, execution, made, weights)
        learner.update("update", learner.transfer(given), rate)
        restored = learner_of(framework, execution, made, weights)
        restored.load_state({name: np.array(each) for name, each in learner.state().items()})
        strays = []
        for name, gradient in gradients.items():
            size = np.abs(gradient)
            if optimizer == "adam":
                step = gradient / (size + (hat / np.sqrt(1 - 0.999) if hat else 1e-8))
            elif optimizer == "sgd":
                step = gradient
            elif framework == "torch":
                step = gradient / (np.sqrt(0.01) * size + 1e-8)
            else:
                step = gradient / np.sqrt(0.1 * size**2 + (1e-7 if framework == "tensorflow" else 1e-8))
            strays.append(np.abs(exact[name] - rate * step - learner.weights("online")[name]).max() / rate)
        found[optimizer] = float(max(strays))
        learner.update("update", learner.transfer(given), rate)
        restored.update("update", restored.transfer(given), rate)
        same = all((each == restored.weights("online")[name]).all() for name, each in learner.weights("online").items())
        found[f"{optimizer} restored"] = float(same)
    return found


def known(framework: str, execution: str, part: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "probes": [learned(framework, execution, number) for number in range(1, 6) if part == "whole"],
        "probes with everything": learned(
            framework, execution, 5, double=True, dueling=True, optimizer="rmsprop", optimizer_epsilon=1e-4, loss="mse"
        ),
        "identical": runs_twice(
            framework, execution, SETTINGS if part == "whole" else replace(SETTINGS, total_steps=200)
        ),
        "diverged": diverges(framework, execution),
    }
    if execution != "fused":
        facts["losses"] = losses(framework, execution)
        if part == "whole":
            facts["acting in NumPy"] = learned(framework, execution, 5, acting="numpy")
    if framework != "numpy" and execution != "fused":
        facts["first steps"] = first_steps(framework, execution)
        facts["first weights"] = float(framework_weights(framework, ALGORITHM, 1)["online"]["layers.0.weight"].std())
    return facts
