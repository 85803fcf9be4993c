"""The off-policy loop with the environment inside: steps, replay and updates in one compiled scan.

The same algorithm, schedules and initial weights as hpcrl.rl.loops.off_policy. Exploration, replay and the environment
draw from JAX's random keys, so the run of a seed differs from that of the other modes. The replay and the choice of
actions are those of the algorithm's module ``fused_<algorithm>`` of this package.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.envs.jax.registry import world_of
from hpcrl.rl.envs.jax.world import World
from hpcrl.rl.frameworks.jax.core import Learner
from hpcrl.rl.frameworks.jax.schedules import schedule
from hpcrl.rl.interfaces import Algorithm
from hpcrl.rl.runs import Run

Memory = dict[str, jax.Array]
_REPLAY = ("stored", "scores")


class State(NamedTuple):
    """The loop's own state between two environment steps: random key, episode, replay. Updates change `scores` of it."""

    key: jax.Array
    state: jax.Array
    value: jax.Array
    length: jax.Array
    stored: Memory
    scores: Memory


class Carry(NamedTuple):
    """Everything that a step reads and writes; `online`, `slots` and `target` are the learner's."""

    step: jax.Array | np.int32
    own: State
    online: jax.Array
    slots: Any
    target: jax.Array


class Happened(NamedTuple):
    """One environment step: `place` is where the replay stores it, `length` the steps of its episode so far."""

    place: jax.Array
    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    following: jax.Array
    terminated: jax.Array
    ended: jax.Array
    length: jax.Array


Drawn = tuple[jax.Array, jax.Array, jax.Array]
Episodes = tuple[jax.Array, jax.Array, jax.Array]


class FusedLoop:
    """Advances by one compiled call per interval between evaluations. The algorithm has one step and one target copy."""

    def __init__(self, learner: Learner, environment: Any, run: Run) -> None:
        settings = learner.algorithm.settings
        self._learner, self._settings, self._reporter, self._clock = learner, settings, run.reporter, run.clock
        self.step = self.episodes = 0
        self.act = learner.act
        ((self._target, self._group),) = learner.algorithm.targets.items()
        world, limit = world_of(environment)
        self._parts = parts = importlib.import_module(f"hpcrl.rl.frameworks.jax.fused_{learner.algorithm.name}")
        self._own = _first_state(world, parts, settings, run.seed)
        program = jax.jit(partial(_advance, learner, parts, world, limit), static_argnums=1, donate_argnums=0)
        # Compiled beforehand for both lengths that occur, so that training contains no compilation.
        whole, rest = settings.evaluation_interval, settings.total_steps % settings.evaluation_interval
        self._programs = {
            count: program.lower(self._carry(), count).compile()
            for count in (whole, rest)
            if 0 < count <= settings.total_steps
        }
        for count in (1, settings.evaluation_episodes):
            learner.act(np.zeros((count, world.inputs), np.float32))

    def _carry(self) -> Carry:
        vectors, slots = self._learner.vectors, self._learner.slots
        return Carry(np.int32(self.step), self._own, vectors[self._group], slots[self._group], vectors[self._target])

    def advance(self, until: int, stop: Callable[[], bool]) -> bool:
        if stop():
            return False
        self._clock.switch("fused")
        carry, episodes = self._programs[until - self.step](self._carry())
        jax.block_until_ready(carry)
        self._clock.switch("other")
        self._own = carry.own
        self._learner.vectors |= {self._group: carry.online, self._target: carry.target}
        self._learner.slots[self._group] = carry.slots
        ended, values, lengths = (np.asarray(array) for array in episodes)
        for index, value, length in zip(
            np.flatnonzero(ended).tolist(), values[ended].tolist(), lengths[ended].tolist(), strict=True
        ):
            self.episodes += 1
            self._reporter.episode(self.step + index + 1, value, length)
        self.step = until
        self._reporter.progress(self.step, self._settings.total_steps)
        return True

    @property
    def updates(self) -> int:
        """Return the number of batches that the learner has learned from: those of each interval that ended when learning had started."""
        settings = self._settings
        intervals = self.step // settings.train_interval - (settings.learning_starts - 1) // settings.train_interval
        return int(settings.updates * max(0, intervals))

    def measures(self) -> dict[str, float]:
        return self._parts.measures(self._own.scores)

    def moments(self) -> None:
        """Return None: observations are not normalised."""

    def close(self) -> None:
        """Do nothing: there are no processes."""

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        own = self._own._asdict()
        named = {name: array for name, array in own.items() if name not in _REPLAY} | own["stored"] | own["scores"]
        return {name: np.asarray(array) for name, array in named.items()}, {}

    def load_state(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        loaded = {name: jnp.asarray(array) for name, array in arrays.items()}
        parts = {name: {key: loaded.pop(key) for key in getattr(self._own, name)} for name in _REPLAY}
        self._own = State(**loaded, **parts)


def _first_state(world: World, parts: Any, settings: Any, seed: int) -> State:
    stored, scores = parts.empty(world, settings)
    key, first = jax.random.split(jax.random.key(seed))
    return State(
        key=jax.random.key_data(key),
        state=world.reset(first),
        value=jnp.float32(0.0),
        length=jnp.int32(0),
        stored=stored,
        scores=scores,
    )


def _advance(
    learner: Learner, parts: Any, world: World, limit: int, carry: Carry, count: int
) -> tuple[Carry, Episodes]:
    """Take `count` steps; also return, for each step, whether an episode ended, its return and its length."""
    settings = learner.algorithm.settings
    (update,) = learner.pure_updates.values()

    def learn(carry: Carry) -> tuple[jax.Array, Any, Memory]:
        own = carry.own
        key = jax.random.fold_in(jax.random.wrap_key_data(own.key), carry.step)
        rate = schedule(settings.learning_rate, settings.final_learning_rate, settings.total_steps, carry.step)

        def one(changing: tuple[jax.Array, Any, Memory], drawn: jax.Array) -> tuple[Any, None]:
            vector, slots, scores = changing
            batch, chosen = parts.sample(learner, own.stored, scores, drawn, carry.step)
            vector, slots, aux = update(vector, slots, [carry.target], batch, rate)
            return (vector, slots, parts.prioritized(settings, scores, chosen, aux)), None

        changing, _ = jax.lax.scan(one, (carry.online, carry.slots, own.scores), parts.draws(settings, key, carry.step))
        return changing

    def steps(carry: Carry, drawn: Drawn) -> tuple[Carry, Episodes]:
        """Take steps with one policy, then learn if it is due."""
        choose = parts.policy(learner, carry.online)

        def one(moving: tuple[jax.Array, State], drawn: Drawn) -> tuple[tuple[jax.Array, State], Episodes]:
            (step, own), (luck, choice, restart) = moving, drawn
            explore = luck < parts.epsilon(settings, step)
            action = jax.lax.cond(explore, lambda: choice, lambda: choose(own, step))
            following, reward, terminated = world.step(own.state, action)
            value, length = own.value + reward, own.length + 1
            ended = terminated | (length >= limit)
            place = step % settings.buffer_size
            happened = Happened(place, own.state, action, reward, following, terminated, ended, length)
            stored, scores = parts.added(settings, own.stored, own.scores, happened)
            own = own._replace(
                state=jnp.where(ended, restart, following),
                value=jnp.where(ended, 0.0, value),
                length=jnp.where(ended, 0, length),
                stored=stored,
                scores=scores,
            )
            return (step + 1, own), (ended, value, length)

        (step, own), episodes = jax.lax.scan(one, (carry.step, carry.own), drawn, unroll=2)
        every = learner.algorithm.sync_every
        target = jnp.where(step // every > carry.step // every, carry.online, carry.target)
        carry = carry._replace(step=step, own=own, target=target)
        due = (step % settings.train_interval == 0) & (step >= settings.learning_starts)
        online, slots, scores = jax.lax.cond(
            due, learn, lambda carry: (carry.online, carry.slots, carry.own.scores), carry
        )
        return carry._replace(online=online, slots=slots, own=own._replace(scores=scores)), episodes

    # Drawn for all steps at once: with one key per step, the random numbers would cost more than the environment.
    key, *streams = jax.random.split(jax.random.wrap_key_data(carry.own.key), 4)
    drawn: Drawn = (
        jax.random.uniform(streams[0], (count,)),
        jax.random.randint(streams[1], (count,), 0, world.actions),
        jax.vmap(world.reset)(jax.random.split(streams[2], count)),
    )
    carry = carry._replace(own=carry.own._replace(key=jax.random.key_data(key)))
    # It learns only at multiples of this number of steps, and each call begins at one. Only the last call of a training has a rest.
    together = math.gcd(settings.evaluation_interval, settings.train_interval)
    whole = count - count % together
    rows = jax.tree.map(lambda array: array[:whole].reshape(-1, together, *array.shape[1:]), drawn)
    carry, episodes = jax.lax.scan(steps, carry, rows)
    episodes = jax.tree.map(lambda array: array.reshape(whole), episodes)
    if whole < count:
        carry, last = steps(carry, jax.tree.map(lambda array: array[whole:], drawn))
        episodes = jax.tree.map(lambda *arrays: jnp.concatenate(arrays), episodes, last)
    return carry, episodes


def make_loop(
    algorithm: Algorithm, implementation: object, make_environment: Callable[[], Any], learner: Learner, run: Run
) -> FusedLoop:
    """Return the compiled loop; it explores by itself."""
    return FusedLoop(learner, make_environment(), run)
