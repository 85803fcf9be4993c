"""Run in JAX's environment: updates and actions from inputs that share memory with NumPy's arrays, beside those that do not; prints JSON.

python -m tests.rl.sharing_program [asynchronously]: then JAX dispatches so, which a learner that shares must survive.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest.mock import patch

import jax
import numpy as np

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.rl.frameworks import configure
from hpcrl.rl.frameworks.jax import runtime
from hpcrl.rl.frameworks.jax.layers import best_actions
from tests.rl.builders import batch, dqn, first_weights, learner_of

UPDATES, SHOWN = 30, 200


def results(shares: bool) -> tuple[bytes, list[int]]:
    """Return the weights after updates at two rates, and greedy actions between them."""
    made, draw = dqn(Settings(hidden=(256, 256))), np.random.default_rng(0)
    with patch.object(runtime, "shares_memory", lambda device: shares):
        learner: Any = learner_of("jax", "lazy", made, first_weights(made, draw))
    assert (learner._inputs is not None) == shares
    actions = []
    for number in range(UPDATES):
        given = batch(draw, 2048)
        transferred = learner.transfer(given)
        assert shares == isinstance(transferred[0], jax.Array)
        for rate in (1e-2 / (1 + number), 1e-3):
            learner.update("update", transferred, rate)
        if number % 10 == 9:
            shown = draw.normal(size=(SHOWN, 4)).astype(np.float32)
            actions += [int(learner.act(row[None])[0]) for row in shown]
    return b"".join(array.tobytes() for array in learner.weights("online").values()), actions


def strays_after(first: str, second: str) -> float:
    """Return how far weights are from those of one mode alone if a mode continues from another's checkpoint."""
    made = dqn(Settings(hidden=(32, 16)))
    one, other = (learner_of("jax", execution, made, first_weights(made)) for execution in (first, second))
    draw = np.random.default_rng(0)
    for learners in ([one], [one, other]):
        for _ in range(10):
            given = batch(draw)
            for learner in learners:
                learner.update("update", learner.transfer(given), 1e-3)
        if len(learners) == 1:
            other.load_state(one.state())
    mine, theirs = one.weights("online"), other.weights("online")
    return max(float(np.abs(array - theirs[name]).max()) for name, array in mine.items())


def main() -> None:
    configure("jax")
    if asynchronously := "asynchronously" in sys.argv[1:]:
        jax.config.update("jax_cpu_enable_async_dispatch", True)
        jax.devices()  # JAX settles it here
    own, copied = results(True), results(False)
    device = jax.local_devices()[0]
    facts = {
        "same weights": own[0] == copied[0],
        "same actions": own[1] == copied[1],
        "both actions": set(own[1]) == {0, 1},
        "shares": runtime.shares_memory(device),
    }
    runtime.dispatch_asynchronously()
    facts["shares if told to dispatch asynchronously"] = runtime.shares_memory(device)
    modes = ("eager", "lazy", "fused")
    facts["checkpoints of other modes"] = all(strays_after(one, other) < 1e-5 for one in modes for other in modes)
    draw = np.random.default_rng(1)
    ties = draw.integers(0, 3, (1000, 5)).astype(np.float32)
    facts["first of equal ones"] = bool((np.asarray(best_actions(ties)) == ties.argmax(1)).all())
    many = draw.integers(0, 30, (100, 40)).astype(np.float32)
    facts["of many actions"] = bool((np.asarray(best_actions(many)) == many.argmax(1)).all())
    facts["of one action"] = bool((np.asarray(best_actions(ties[:, :1])) == 0).all())
    facts["nothing"] = runtime.input_like(np.zeros((0, 3), np.float32))[0].shape == (0, 3)
    place = runtime.input_like(np.array([2**40, -1]))[1]
    facts["type of whole numbers"] = str(place.dtype)
    assert asynchronously or facts["shares"]
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
