"""Run by benchmarks.floors in a framework's environment: microseconds of acting and of an update, ours and the floor's, as JSON.

The floor's update is checked first: it must change the weights as the learner's does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.formats.facts import Asked
from hpcrl.rl.algorithms.dqn import algorithm
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.frameworks import make_learner
from hpcrl.rl.interfaces import Space
from hpcrl.rl.weights import initial_weights
from hpcrl.run.training import before_import

RATE, GAMMA, EPSILON = 2.5e-4, 0.99, 1e-8
CALLS, ROUNDS = 50, 60
Arrays = list[NDArray[Any]]


class Floor(NamedTuple):
    """Act on observations (n, 4); update from a batch and Adam's numbers; and the weights, (out, in) and (out,) in turn."""

    act: Callable[[NDArray[np.float32]], Any]
    update: Callable[[Arrays, float, float], None]
    weights: Callable[[], Arrays]


def numbers(step: int) -> tuple[float, float]:
    """Return Adam's rate and epsilon of a step, both with the corrections of its moments."""
    scale = float(np.sqrt(1 - 0.999**step))
    return RATE * scale / (1 - 0.9**step), EPSILON * scale


def torch_floor(execution: str, weights: Arrays) -> Floor:
    """The gradient is by hand. Weights are views of one vector, so that Adam is a few operations."""
    import torch

    linear = torch.nn.functional.linear
    vector = torch.from_numpy(np.concatenate([array.ravel() for array in weights]))
    own = [
        part.view(array.shape)
        for part, array in zip(vector.split([array.size for array in weights]), weights, strict=True)
    ]
    target = [torch.from_numpy(array.copy()) for array in weights]
    first, second = torch.zeros_like(vector), torch.zeros_like(vector)

    def q(layers: list[Any], x: Any) -> Any:
        hidden = torch.relu_(linear(torch.relu_(linear(x, layers[0], layers[1])), layers[2], layers[3]))
        return linear(hidden, layers[4], layers[5])

    def greedy(x: Any) -> Any:
        return q(own, x).argmax(1)

    def step(x: Any, actions: Any, rewards: Any, following: Any, terminated: Any, rate: Any, epsilon: Any) -> None:
        wanted = rewards + GAMMA * (1 - terminated) * q(target, following).amax(1)
        one = torch.relu_(linear(x, own[0], own[1]))
        two = torch.relu_(linear(one, own[2], own[3]))
        chosen, index = linear(two, own[4], own[5]), actions[:, None]
        delta = torch.zeros_like(chosen).scatter_(1, index, (chosen.gather(1, index) - wanted[:, None]) * (2 / len(x)))
        parts = [delta.T @ two, delta.sum(0)]
        for layer, given, output in ((4, one, two), (2, x, one)):
            delta = (delta @ own[layer]) * (output > 0)
            parts = [delta.T @ given, delta.sum(0), *parts]
        gradient = torch.cat([part.flatten() for part in parts])
        first.lerp_(gradient, 0.1)
        second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        vector.sub_(first / (second.sqrt() + epsilon) * rate)

    if execution == "lazy":
        greedy, step = (torch.compile(function, fullgraph=True, dynamic=False) for function in (greedy, step))

    def update(batch: Arrays, rate: float, epsilon: float) -> None:
        step(*map(torch.from_numpy, batch), *map(torch.tensor, (rate, epsilon)))

    return Floor(
        lambda shown: greedy(torch.from_numpy(shown)).numpy(), update, lambda: [array.numpy().copy() for array in own]
    )


def tensorflow_floor(execution: str, weights: Arrays) -> Floor:
    import tensorflow as tf
    from tensorflow.python.eager import context, execute

    own, target = ([tf.Variable(array.T.copy()) for array in weights] for _ in range(2))
    sizes, shapes = [array.size for array in weights], [array.T.shape for array in weights]
    first, second = (tf.Variable(tf.zeros(sum(sizes))) for _ in range(2))

    def q(layers: list[Any], x: Any) -> Any:
        hidden = tf.nn.relu(tf.nn.relu(x @ layers[0] + layers[1]) @ layers[2] + layers[3])
        return hidden @ layers[4] + layers[5]

    def step(x: Any, actions: Any, rewards: Any, following: Any, terminated: Any, rate: Any, epsilon: Any) -> Any:
        wanted = rewards + GAMMA * (1 - terminated) * tf.reduce_max(q(target, following), 1)
        with tf.GradientTape() as tape:
            chosen = tf.reduce_sum(q(own, x) * tf.one_hot(actions, 2), 1)
            loss = tf.reduce_mean((chosen - wanted) ** 2)
        gradient = tf.concat([tf.reshape(part, [-1]) for part in tape.gradient(loss, own)], 0)
        one, two = first + 0.1 * (gradient - first), 0.999 * second + 0.001 * gradient * gradient
        first.assign(one)
        second.assign(two)
        change = tf.split(rate * one / (tf.sqrt(two) + epsilon), sizes)
        for variable, part, shape in zip(own, change, shapes, strict=True):
            variable.assign_sub(tf.reshape(part, shape))
        return loss

    def entered(function: Callable[..., Any], tensors: list[Any]) -> Callable[[], Any]:
        compiled = tf.function(function, jit_compile=execution == "xla", autograph=False)
        concrete = compiled.get_concrete_function(*tensors)
        name = concrete.name if isinstance(concrete.name, bytes) else concrete.name.encode()
        captured, outputs, here = list(concrete.captured_inputs), len(concrete.outputs), context.context()

        def enter(kept: Any = compiled) -> Any:  # the function goes with its last reference
            return execute.execute(name, outputs, [*tensors, *captured], (), here)[0]

        return enter

    def placed(*kinds: tuple[tuple[int, ...], type[np.generic]]) -> tuple[list[Any], Arrays]:
        """Return tensors of these shapes and types, and arrays that share their memory: it begins at multiples of 64 bytes."""
        places = []
        for shape, kind in kinds:
            size = int(np.prod(shape, dtype=int)) * np.dtype(kind).itemsize
            raw = np.zeros(size + 64, np.uint8)
            start = -raw.ctypes.data % 64
            places.append(raw[start : start + size].view(kind).reshape(shape))
        return [tf.experimental.dlpack.from_dlpack(place.__dlpack__()) for place in places], places

    rows, column = ((128, 4), np.float32), ((128,), np.float32)
    shown, (seen,) = placed(((1, 4), np.float32))
    given, places = placed(rows, ((128,), np.int64), column, rows, column, ((), np.float32), ((), np.float32))
    greedy, learn = entered(lambda x: tf.argmax(q(own, x), 1), shown), entered(step, given)

    def act(observations: NDArray[np.float32]) -> Any:
        seen[...] = observations
        return greedy().numpy()

    def update(batch: Arrays, rate: float, epsilon: float) -> None:
        for place, array in zip(places, (*batch, rate, epsilon), strict=True):
            place[...] = array
        learn()

    return Floor(
        act,
        update,
        lambda: [variable.numpy().T.copy() for variable in own],
    )


def jax_floor(execution: str, weights: Arrays) -> Floor:
    """Inputs share memory with NumPy's arrays, and weights have their outputs first, as one observation's product wants them."""
    from functools import partial

    import jax
    import jax.numpy as jnp

    from hpcrl.rl.frameworks.jax.runtime import input_like

    sizes = np.cumsum([array.size for array in weights])[:-1]
    flat = np.concatenate([array.ravel() for array in weights])
    device = jax.local_devices()[0]
    state = [jax.device_put(array, device) for array in (flat, np.zeros_like(flat), np.zeros_like(flat))]
    target = jax.device_put(flat.copy(), device)

    def q(vector: Any, x: Any) -> Any:
        layers = [part.reshape(array.shape).T for part, array in zip(jnp.split(vector, sizes), weights, strict=True)]
        hidden = jax.nn.relu(jax.nn.relu(x @ layers[0] + layers[1]) @ layers[2] + layers[3])
        return hidden @ layers[4] + layers[5]

    def loss(vector: Any, target: Any, batch: Any) -> Any:
        x, actions, rewards, following, terminated = batch
        wanted = rewards + GAMMA * (1 - terminated) * q(target, following).max(1)
        values = q(vector, x)
        chosen = jnp.where(actions == 1, values[:, 1], values[:, 0])
        return ((chosen - wanted) ** 2).mean()

    @partial(jax.jit, donate_argnums=0)
    def step(state: Any, target: Any, batch: Any, rate: Any, epsilon: Any) -> Any:
        vector, first, second = state
        gradient = jax.grad(loss)(vector, target, batch)
        first, second = first + 0.1 * (gradient - first), 0.999 * second + 0.001 * gradient * gradient
        return [vector - rate * first / (jnp.sqrt(second) + epsilon), first, second]

    def best(vector: Any, x: Any) -> Any:
        values = q(vector, x)
        return (values[:, 1] > values[:, 0]).astype(jnp.int32)

    greedy = jax.jit(best)
    kinds: list[tuple[Any, str]] = [
        ((1, 4), "f4"),
        ((128, 4), "f4"),
        (128, "i4"),
        (128, "f4"),
        ((128, 4), "f4"),
        (128, "f4"),
        (1, "f4"),
        (1, "f4"),
    ]
    (one, shown_place), *pairs = [input_like(np.zeros(*kind)) for kind in kinds]
    inputs, places = [made for made, _ in pairs], [place for _, place in pairs]

    def act(shown: NDArray[np.float32]) -> Any:
        shown_place[...] = shown
        return np.asarray(greedy(state[0], one))

    def update(batch: Arrays, rate: float, epsilon: float) -> None:
        for place, array in zip(places, (*batch, rate, epsilon), strict=True):
            place[...] = array
        state[:] = step(state, target, inputs[:5], *inputs[5:])

    def cut() -> Arrays:
        parts = np.split(np.asarray(state[0]), sizes)
        return [part.reshape(array.shape).copy() for part, array in zip(parts, weights, strict=True)]

    return Floor(act, update, cut)


def mxnet_floor(execution: str, weights: Arrays) -> Floor:
    """Symbols are bound once, to arrays that share memory with NumPy's, and to parts of one vector of weights and one of gradients."""
    import mxnet as mx

    names = [f"{kind}{layer}" for layer in range(3) for kind in "wb"]
    own, gradient, first, second, target = (
        mx.nd.array(np.concatenate([array.ravel() for array in weights]), dtype="float32") * factor
        for factor in (1, 0, 0, 0, 1)
    )

    def parts(vector: Any, prefix: str) -> dict[str, Any]:
        cuts = [0, *np.cumsum([array.size for array in weights]).tolist()]
        pairs = zip(names, cuts, cuts[1:], weights, strict=False)
        return {f"{prefix}{name}": vector[begin:end].reshape(array.shape) for name, begin, end, array in pairs}

    def q(prefix: str, x: Any) -> Any:
        for layer, width in enumerate((120, 84, 2)):
            pair = [mx.sym.var(f"{prefix}{kind}{layer}") for kind in ("w", "b")]
            x = mx.sym.FullyConnected(x, *pair, num_hidden=width, flatten=False)
            x = mx.sym.Activation(x, act_type="relu") if layer < 2 else x
        return x

    shapes = {
        "shown": (1, 4),
        "x": (128, 4),
        "actions": (128,),
        "rewards": (128,),
        "following": (128, 4),
        "terminated": (128,),
    }
    places = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    inputs = {name: mx.nd.from_numpy(place.view(), zero_copy=True) for name, place in places.items()}
    shown, x, actions, rewards, following, terminated = (mx.sym.var(name) for name in shapes)
    arrays = inputs | parts(own, "own_") | parts(target, "target_")
    best = mx.sym.max(q("target_", following), axis=1)
    wanted = mx.sym.BlockGrad(rewards + GAMMA * (1 - terminated) * best)
    loss = mx.sym.MakeLoss(mx.sym.mean(mx.sym.square(mx.sym.pick(q("own_", x), actions, axis=1) - wanted)))
    changes = parts(gradient, "own_")

    def bound(symbol: Any) -> Any:
        """As for training: else oneDNN keeps what it made of the first weights."""
        wants = {name: "write" if name in changes else "null" for name in symbol.list_arguments()}
        return symbol.bind(mx.cpu(), arrays, args_grad=changes, grad_req=wants)

    learn, greedy = bound(loss), bound(mx.sym.argmax(q("own_", shown), axis=1))

    def act(observations: NDArray[np.float32]) -> Any:
        places["shown"][...] = observations
        greedy.forward(is_train=True)
        return greedy.outputs[0].asnumpy()

    def update(batch: Arrays, rate: float, epsilon: float) -> None:
        for name, array in zip(("x", "actions", "rewards", "following", "terminated"), batch, strict=True):
            places[name][...] = array
        learn.forward(is_train=True)
        learn.backward()
        mx.nd.adam_update(own, gradient, first, second, lr=rate, epsilon=epsilon, out=own)
        mx.nd.waitall()

    return Floor(act, update, lambda: [array.asnumpy() for array in parts(own, "").values()])


FLOORS = {"torch": torch_floor, "tensorflow": tensorflow_floor, "jax": jax_floor, "mxnet": mxnet_floor}


def main(framework: str, execution: str) -> None:
    before_import([framework], Asked(1, 1024, 60), Group())
    settings = Settings(hidden=(120, 84), loss="mse", max_gradient_norm=0.0, gamma=GAMMA, optimizer_epsilon=EPSILON)
    made, draw = algorithm(Space(4, 2), settings), np.random.default_rng(0)
    weights = initial_weights(made, draw)
    learner = make_learner(framework, execution, made, weights)
    floor = FLOORS[framework](execution, [array.copy() for array in weights["online"].values()])
    batch = (
        draw.normal(size=(128, 4)).astype(np.float32), draw.integers(0, 2, 128),
        draw.normal(size=128).astype(np.float32), draw.normal(size=(128, 4)).astype(np.float32),
        (draw.random(128) < 0.1).astype(np.float32),
    )  # fmt: skip
    shown = batch[0][:1]

    def learn() -> None:
        learner.update("update", learner.transfer(batch), RATE)
        learner.synchronize()

    for step in (1, 2, 3):
        learn()
        floor.update(list(batch), *numbers(step))
    strays = [
        np.abs(mine - array).max()
        for mine, array in zip(learner.weights("online").values(), floor.weights(), strict=True)
    ]
    assert max(strays) < 1e-6, strays
    assert (np.asarray(floor.act(shown)).ravel() == learner.act(shown)).all()
    calls = {
        "act": lambda: learner.act(shown),
        "act floor": lambda: floor.act(shown),
        "update": learn,
        "update floor": lambda: floor.update(list(batch), RATE, EPSILON),
    }
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):  # in turn, because other work on the machine comes and goes
        for name, call in calls.items():
            begun = process_time()
            for _ in range(CALLS):
                call()
            least[name] = min(least[name], process_time() - begun)
    print(json.dumps({name: 1e6 * seconds / CALLS for name, seconds in least.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
