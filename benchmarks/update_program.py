"""Run in an environment of its own: print the milliseconds of one update of TD3 (17 observations, 6 actions, 256-256), or of one epoch of VPG.

python -m benchmarks.update_program td3 FRAMEWORK EXECUTION BATCH   hpcrl's learner
python -m benchmarks.update_program cleanrl SCRIPT BATCH            the lines of CleanRL's own script, unchanged
python -m benchmarks.update_program spinning-up BATCH               a stand-in: see spinning_up.py
python -m benchmarks.update_program products LIBRARY BATCH          its matrix products alone, in numpy or jax
python -m benchmarks.update_program arithmetic BATCH                hpcrl's updates in JAX, many in one program, without calls
python -m benchmarks.update_program vpg FRAMEWORK EXECUTION         an epoch of hpcrl's loop
python -m benchmarks.update_program spinning-up-vpg                 an epoch of the stand-in

The batch is in memory on every side. The critics learn at each update; policy and copies at each second, so that a time is the mean of both kinds.
Target noise is drawn within the time on every side.
"""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
OBSERVATIONS, ACTIONS, HIDDEN = 17, 6, (256, 256)
POLICY, CRITIC = (OBSERVATIONS, *HIDDEN, ACTIONS), (OBSERVATIONS + ACTIONS, *HIDDEN, 1)
# Updates of one reading of the clock, one of each kind, and readings.
BLOCK, READINGS = 2, 600
BLOCKS = 20  # of one program
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
    made, learner = _learner(framework, execution, rows)
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


def arithmetic(rows: str) -> float:
    """Time the updates of JAX's learner in one program: what they compute, without the calls of Python and of programs. Their noise was drawn before."""
    import jax

    made, learner = _learner("jax", "lazy", rows)
    batch = batch_of(int(rows))

    def block(state: Any, noises: Any) -> Any:
        vectors, slots = dict(state[0]), dict(state[1])
        for number in range(BLOCK):
            for step in made.steps:
                if number % step.every == 0:
                    own, uses = (vectors[step.group], slots[step.group]), [vectors[name] for name in step.uses]
                    learnt = learner.pure_updates[step.name](*own, uses, (*batch, noises[number]), np.float32(1e-3))
                    vectors[step.group], slots[step.group], _ = learnt
                    if step.name == made.sync_unit:
                        for target, group in made.targets.items():
                            vectors[target] += made.sync_share * (vectors[group] - vectors[target])
        return (vectors, slots), None

    noises = np.random.default_rng(1).standard_normal((BLOCKS, BLOCK, int(rows), ACTIONS)).astype(np.float32)
    program = jax.jit(lambda state, noises: jax.lax.scan(block, state, noises)[0])
    state = (learner.vectors, learner.slots)
    return least(lambda: jax.block_until_ready(program(state, noises)), READINGS // BLOCKS) / BLOCKS / BLOCK


def _learner(framework: str, execution: str, rows: str) -> tuple[Any, Any]:
    """Return the algorithm and its learner."""
    from hpcrl.catalogue.algorithms.td3 import Settings
    from hpcrl.rl.algorithms.td3 import algorithm
    from hpcrl.rl.frameworks import make_learner
    from hpcrl.rl.interfaces import Space
    from hpcrl.rl.weights import initial_weights

    _prepare(framework)
    space = Space(OBSERVATIONS, ACTIONS, bounds=((-1.0, 1.0),) * ACTIONS)
    made = algorithm(space, Settings(hidden=HIDDEN, batch_size=int(rows)))
    return made, make_learner(framework, execution, made, initial_weights(made, np.random.default_rng(0)))


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


# The product of two matrices.
Multiply = Callable[[Any, Any], Any]


def products(library: str, rows: str) -> float:
    """Time the matrix products of an update, on what they read in an update: those of the critics' step, and half of those of the policy's."""
    draw = np.random.default_rng(0)

    def weights(sizes: tuple[int, ...]) -> list[Floats]:
        shapes = pairwise(sizes)
        return [(draw.uniform(-1, 1, shape) / np.sqrt(shape[0])).astype(np.float32) for shape in shapes]

    policy, critics = weights(POLICY), [weights(CRITIC) for _ in range(4)]
    shown = [draw.normal(size=(int(rows), inputs)).astype(np.float32) for inputs in (POLICY[0], CRITIC[0])]
    errors = [draw.normal(size=(int(rows), outputs)).astype(np.float32) for outputs in (1, ACTIONS)]
    timed = _in_numpy if library == "numpy" else _in_jax
    of_critics, of_policy = (
        least(timed(step, policy, critics, shown, errors), READINGS) for step in (_critics, _policy)
    )
    return of_critics + of_policy / 2


def _critics(multiply: Multiply, policy: Any, critics: Any, shown: Any, errors: Any) -> None:
    """Multiply what a step of both critics multiplies: the copies of all networks forwards, both critics forwards and back.

    The values of a layer are those that it passes on, as if it had no activation.
    """
    _forward(multiply, shown[0], policy)
    for copy, own in (critics[:2], critics[2:]):
        _forward(multiply, shown[1], copy)
        _backward(multiply, _forward(multiply, shown[1], own), own, errors[0])


def _policy(multiply: Multiply, policy: Any, critics: Any, shown: Any, errors: Any) -> None:
    """Multiply what a step of the policy multiplies: both networks forwards, back through the critic to the action, and through the policy."""
    read = _forward(multiply, shown[0], policy)
    _forward(multiply, shown[1], critics[0])
    gradient = errors[0]
    for weight in reversed([critics[0][0][OBSERVATIONS:], *critics[0][1:]]):
        gradient = multiply(gradient, weight.T)
    _backward(multiply, read, policy, errors[1])


def _forward(multiply: Multiply, values: Any, weights: Any) -> list[Any]:
    """Return what each layer reads."""
    read = []
    for weight in weights:
        read.append(values)
        values = multiply(values, weight)
    return read


def _backward(multiply: Multiply, read: list[Any], weights: Any, gradient: Any) -> None:
    """Multiply for the gradients of weights, and of the inputs of all layers but the first."""
    for values, weight in zip(read[:0:-1], weights[:0:-1], strict=True):
        multiply(values.T, gradient)
        gradient = multiply(gradient, weight.T)
    multiply(read[0].T, gradient)


def _in_numpy(step: Callable[..., None], *given: Any) -> Callable[[], object]:
    """Multiply by NumPy's BLAS, into arrays that exist."""
    whole: list[tuple[Floats, Floats, Floats]] = []

    def note(left: Floats, right: Floats) -> Floats:
        whole.append((left, right, left @ right))
        return whole[-1][2]

    def multiply() -> None:
        for left, right, out in whole:
            np.matmul(left, right, out=out)

    step(note, *given)
    return multiply


def _in_jax(step: Callable[..., None], *given: Any) -> Callable[[], object]:
    """Multiply in one program of XLA. Barriers keep it from leaving a product out of which only one number is returned."""
    _prepare("jax")
    import jax

    def multiply(*given: Any) -> list[Any]:
        found = []

        def note(left: Any, right: Any) -> Any:
            found.append(product := jax.lax.optimization_barrier(left @ right))
            return product

        step(note, *given)
        return [product[0, 0] for product in found]

    arrays, compiled = jax.device_put(given), jax.jit(multiply)
    return lambda: jax.block_until_ready(compiled(*arrays))


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
    "td3": td3, "cleanrl": cleanrl, "spinning-up": spinning_up, "products": products, "arithmetic": arithmetic,
    "vpg": vpg, "spinning-up-vpg": spinning_up_vpg,
}  # fmt: skip

if __name__ == "__main__":
    name, *given = sys.argv[1:]
    print(f"MS: {PROGRAMS[name](*given):.6f}")
