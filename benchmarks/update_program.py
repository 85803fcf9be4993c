"""Run in an environment of its own: print the milliseconds of one update of TD3 (17 observations, 6 actions, 256-256), or of one epoch of VPG.

python -m benchmarks.update_program td3 FRAMEWORK EXECUTION BATCH   hpcrl's learner
python -m benchmarks.update_program cleanrl SCRIPT BATCH            the lines of CleanRL's own script, unchanged
python -m benchmarks.update_program spinning-up BATCH               a stand-in: see spinning_up.py
python -m benchmarks.update_program products LIBRARY BATCH          its matrix products alone, in numpy or jax
python -m benchmarks.update_program vpg FRAMEWORK EXECUTION         an epoch of hpcrl's loop
python -m benchmarks.update_program spinning-up-vpg                 an epoch of the stand-in

The batch is in memory on every side. The critics learn at each update; policy and copies at each second, so that a time is the mean of both kinds.
Target noise is drawn within the time on every side.
"""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
OBSERVATIONS, ACTIONS, HIDDEN = 17, 6, (256, 256)
POLICY, CRITIC = (OBSERVATIONS, *HIDDEN, ACTIONS), (OBSERVATIONS + ACTIONS, *HIDDEN, 1)
# Updates of one reading of the clock, an even number, and readings.
BLOCK, READINGS = 20, 50
ROLLOUT, EPOCHS, VPG_HIDDEN, ENVIRONMENT = 4_000, 6, (64, 64), "HalfCheetah-v5"


def least(work: Callable[[], object], readings: int) -> float:
    """Return the least milliseconds of a call, in CPU time of the process: on one core that is its time without other work on the machine.

    The first call is not counted, because it compiles.
    """
    work()
    seconds = []
    for _ in range(readings):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return 1000 * min(seconds)


def batch_of(rows: int) -> tuple[Floats, ...]:
    """Return observations, actions, rewards, next observations, and whether the episode terminated."""
    draw = np.random.default_rng(0)
    observations, following = (draw.normal(size=(rows, OBSERVATIONS)).astype(np.float32) for _ in range(2))
    actions = draw.uniform(-1, 1, (rows, ACTIONS)).astype(np.float32)
    return observations, actions, draw.normal(size=rows).astype(np.float32), following, np.zeros(rows, np.float32)


def td3(framework: str, execution: str, rows: str) -> float:
    """Time the learner as its loop calls it, with the transfer of the batch."""
    from hpcrl.catalogue.algorithms.td3 import Settings
    from hpcrl.rl.algorithms.td3 import algorithm
    from hpcrl.rl.frameworks import make_learner
    from hpcrl.rl.interfaces import Space
    from hpcrl.rl.weights import initial_weights

    _prepare(framework)
    space = Space(OBSERVATIONS, ACTIONS, bounds=((-1.0, 1.0),) * ACTIONS)
    made = algorithm(space, Settings(hidden=HIDDEN, batch_size=int(rows)))
    learner = make_learner(framework, execution, made, initial_weights(made, np.random.default_rng(0)))
    batch, draw = batch_of(int(rows)), np.random.default_rng(1)

    def updates() -> None:
        for number in range(BLOCK):
            noise = draw.standard_normal((int(rows), ACTIONS)).astype(np.float32)
            given = learner.transfer((*batch, noise))
            for step in made.steps:
                if number % step.every == 0:
                    learner.update(step.name, given, 1e-3)
                    if step.name == made.sync_unit:
                        for target in made.targets:
                            learner.sync(target, made.sync_share)
        learner.synchronize()

    return least(updates, READINGS) / BLOCK


def cleanrl(script: str, rows: str) -> float:
    """Run a script to its end, some steps after its learning begins. Then time its own lines of an update, with its own variables."""
    from benchmarks.old_gym import NAME, run

    steps = ("--total-timesteps", "300", "--learning-starts", "200", "--buffer-size", "1000", "--batch-size", rows)
    names = run(script, "--env-id", NAME, *steps, *([] if "jax" in Path(script).name else ["--cuda", "false"]))
    ready = names["rb"].sample(int(rows))
    names["rb"] = SimpleNamespace(sample=lambda asked: ready)
    lines = _update_lines(script)

    def updates() -> None:
        for number in range(BLOCK):
            names["global_step"] = 1_001 + number % 2  # learns, and logs nothing
            exec(lines, names)
        if "jax" in names:
            names["jax"].block_until_ready([names[name] for name in ("actor_state", "qf1_state", "qf2_state")])

    return least(updates, READINGS) / BLOCK


def _update_lines(script: str) -> Any:
    """Return what a script does at a step at which it learns, compiled."""
    nodes = ast.walk(ast.parse(Path(script).read_text(encoding="utf-8")))
    (found,) = (
        node
        for node in nodes
        if isinstance(node, ast.If) and ast.unparse(node.test) == "global_step > args.learning_starts"
    )
    return compile(ast.Module([found], []), script, "exec")


def spinning_up(rows: str) -> float:
    import torch

    from benchmarks.spinning_up import Td3

    torch.set_num_threads(1)
    learner = Td3(OBSERVATIONS, ACTIONS, HIDDEN)
    batch = [torch.from_numpy(array) for array in batch_of(int(rows))]

    def updates() -> None:
        for number in range(BLOCK):
            learner.update(batch, number % 2 == 0)

    return least(updates, READINGS) / BLOCK


class Product(NamedTuple):
    """A matrix product, one of whose factors may be transposed as it is read."""

    left: Floats
    right: Floats
    transposed: Literal["", "left", "right"]


def products(library: str, rows: str) -> float:
    """Time the matrix products of two updates, the first of which moves the policy, one after the other."""
    draw = np.random.default_rng(0)

    def some(*shape: int) -> Floats:
        return draw.normal(size=shape).astype(np.float32)

    needed = [
        Product(some(*left), some(*right), transposed)
        for left, right, transposed in (*_of_critics(int(rows)), *_of_critics(int(rows)), *_of_policy(int(rows)))
    ]
    return least(_in_numpy(needed) if library == "numpy" else _in_jax(needed), BLOCK * READINGS // 2) / 2


Shapes = tuple[tuple[int, int], tuple[int, int], Literal["", "left", "right"]]


def _forward(rows: int, sizes: tuple[int, ...]) -> Iterator[Shapes]:
    for inputs, outputs in pairwise(sizes):
        yield (rows, inputs), (inputs, outputs), ""


def _gradients(rows: int, sizes: tuple[int, ...]) -> Iterator[Shapes]:
    """Give the products of the gradients of weights, and of the inputs of all layers but the first."""
    for layer, (inputs, outputs) in zip(count(), pairwise(sizes)):
        yield (rows, inputs), (rows, outputs), "left"
        if layer:
            yield (rows, outputs), (inputs, outputs), "right"


def _of_critics(rows: int) -> Iterator[Shapes]:
    """Give the products of a step of both critics: the target's three networks forwards, both critics forwards and back."""
    yield from _forward(rows, POLICY)
    for _ in range(2):
        yield from _forward(rows, CRITIC)
        yield from _forward(rows, CRITIC)
        yield from _gradients(rows, CRITIC)


def _of_policy(rows: int) -> Iterator[Shapes]:
    """Give the products of a step of the policy: both networks forwards, back through one critic to the action, and through the policy."""
    yield from _forward(rows, POLICY)
    yield from _forward(rows, CRITIC)
    for inputs, outputs in pairwise((ACTIONS, *CRITIC[1:])):
        yield (rows, outputs), (inputs, outputs), "right"
    yield from _gradients(rows, POLICY)


def _in_numpy(needed: list[Product]) -> Callable[[], object]:
    """Multiply by NumPy's BLAS, into arrays that exist."""
    turned = [
        (left.T if transposed == "left" else left, right.T if transposed == "right" else right)
        for left, right, transposed in needed
    ]
    whole = [(left, right, np.zeros((left.shape[0], right.shape[1]), np.float32)) for left, right in turned]

    def multiply() -> None:
        for left, right, out in whole:
            np.matmul(left, right, out=out)

    return multiply


def _in_jax(needed: list[Product]) -> Callable[[], object]:
    """Multiply in one program of XLA. A barrier keeps it from computing only what is returned of a product: one number."""
    _prepare("jax")
    import jax

    transposed = [each.transposed for each in needed]

    def multiply(pairs: Any) -> Any:
        found = []
        for (left, right), which in zip(pairs, transposed, strict=True):
            product = (left.T if which == "left" else left) @ (right.T if which == "right" else right)
            found.append(jax.lax.optimization_barrier(product)[0, 0])
        return found

    pairs, compiled = jax.device_put([(each.left, each.right) for each in needed]), jax.jit(multiply)
    return lambda: jax.block_until_ready(compiled(pairs))


def vpg(framework: str, execution: str) -> float:
    """Time an epoch of the loop: a rollout, one step of the policy, 80 of the values."""
    from hpcrl.catalogue.algorithms.vpg import Settings
    from hpcrl.rl.envs.make import gymnasium_environment
    from hpcrl.rl.make import make_training
    from hpcrl.rl.runs import Run
    from hpcrl.rl.smoke import Silent
    from hpcrl.telemetry.phases import PhaseClock

    _prepare(framework)
    settings = Settings(hidden=VPG_HIDDEN, rollout_steps=ROLLOUT, total_steps=10**9, evaluation_episodes=1)
    environment = partial(gymnasium_environment, ENVIRONMENT, None)
    loop = make_training("vpg", settings, framework, execution, environment, Run(1, Silent(), PhaseClock())).loop
    value = least(lambda: loop.advance(loop.step + ROLLOUT, lambda: False), EPOCHS)
    loop.close()
    return value


def spinning_up_vpg() -> float:
    import gymnasium
    import torch

    from benchmarks.spinning_up import Vpg

    torch.set_num_threads(1)
    return least(Vpg(gymnasium.make(ENVIRONMENT), ROLLOUT, VPG_HIDDEN).epoch, EPOCHS)


def _prepare(framework: str) -> None:
    """Set what a cell on one core sets before its framework computes anything."""
    from hpcrl.formats.facts import Asked
    from hpcrl.rl.distributed.group import Group
    from hpcrl.rl.frameworks import configure
    from hpcrl.run.training import before_import

    before_import([framework], Asked(1, 1024, 60), Group())
    configure(framework)


PROGRAMS: dict[str, Callable[..., float]] = {
    "td3": td3, "cleanrl": cleanrl, "spinning-up": spinning_up, "products": products, "vpg": vpg,
    "spinning-up-vpg": spinning_up_vpg,
}  # fmt: skip

if __name__ == "__main__":
    name, *given = sys.argv[1:]
    print(f"MS: {PROGRAMS[name](*given):.6f}")
