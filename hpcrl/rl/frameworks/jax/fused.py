"""DQN with the environment inside: steps, replay and updates in one compiled scan.

The same algorithm, schedules and initial weights as the loop in hpcrl.rl.algorithms.dqn. Exploration, replay and the
environment draw from JAX's random keys, so the run of a seed differs from that of the other modes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from hpcrl.errors import UsageError, suggestion
from hpcrl.rl.envs.jax import cartpole
from hpcrl.rl.envs.jax.probes import Probe
from hpcrl.telemetry.phases import PhaseClock

if TYPE_CHECKING:
    from hpcrl.rl.algorithms.dqn import DqnConfig, Reporter
    from hpcrl.rl.frameworks.jax.dqn import Learner

ENVIRONMENTS: dict[str, Any] = {"CartPole-v0": cartpole, "CartPole-v1": cartpole} | {
    f"Probe{number}": Probe(number) for number in range(1, 6)
}


class Carry(NamedTuple):
    """The state between two environment steps."""

    step: jax.Array
    key: jax.Array
    state: jax.Array
    value: jax.Array
    length: jax.Array
    observations: jax.Array
    actions: jax.Array
    rewards: jax.Array
    following: jax.Array
    terminated: jax.Array
    online: jax.Array
    slots: Any
    target: jax.Array


class FusedLoop:
    """Advances by one compiled call per interval between evaluations."""

    def __init__(
        self,
        learner: Learner,
        config: DqnConfig,
        environment: Any,
        seed: int,
        reporter: Reporter,
        clock: PhaseClock,
    ) -> None:
        spec = environment.spec
        if spec is None or spec.id not in ENVIRONMENTS:
            name = spec.id if spec else type(environment).__name__
            raise UsageError(f"jax fused: there is no {name} in JAX; {suggestion(name, ENVIRONMENTS)}")
        self._learner, self._config = learner, config
        self._reporter, self._clock = reporter, clock
        self.step = self.episodes = 0
        self.act = learner.act
        world = ENVIRONMENTS[spec.id]
        most = int(spec.max_episode_steps or 2**30)
        key, first = jax.random.split(jax.random.key(seed))
        self._world = (
            jax.random.key_data(key),
            world.reset(first),
            jnp.float32(0.0),
            jnp.int32(0),
            jnp.zeros((config.buffer_size, world.INPUTS)),
            jnp.zeros(config.buffer_size, jnp.int32),
            jnp.zeros(config.buffer_size),
            jnp.zeros((config.buffer_size, world.INPUTS)),
            jnp.zeros(config.buffer_size),
        )
        program = jax.jit(partial(_advance, config, learner, world, most), static_argnums=1, donate_argnums=0)
        # Compiled beforehand for both lengths that occur, so that training contains no compilation.
        whole, rest = config.evaluation_interval, config.total_steps % config.evaluation_interval
        self._programs = {
            count: program.lower(self._carry(), count).compile()
            for count in (whole, rest)
            if 0 < count <= config.total_steps
        }
        for count in (1, config.evaluation_episodes):
            learner.act(np.zeros((count, world.INPUTS), np.float32))

    def _carry(self) -> Carry:
        online, slots, target = self._learner.parts()
        return Carry(jnp.int32(self.step), *self._world, online, slots, target)

    def advance(self, until: int, stop: Callable[[], bool]) -> bool:
        if stop():
            return False
        self._clock.switch("fused")
        carry, (ended, values, lengths) = self._programs[until - self.step](self._carry())
        jax.block_until_ready(carry)
        self._clock.switch("other")
        self._world = carry[1:10]
        self._learner.set_parts(carry.online, carry.slots, carry.target)
        for index in np.flatnonzero(np.asarray(ended)):
            self.episodes += 1
            self._reporter.episode(self.step + int(index) + 1, float(values[index]), int(lengths[index]))
        self.step = until
        self._reporter.progress(self.step, self._config.total_steps)
        return True

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        return {str(number): np.asarray(each) for number, each in enumerate(self._world)}, {}

    def load_state(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        self._world = tuple(jnp.asarray(arrays[str(number)]) for number in range(len(self._world)))


def _advance(
    config: DqnConfig, learner: Learner, world: Any, most: int, carry: Carry, count: int
) -> tuple[Carry, tuple[jax.Array, jax.Array, jax.Array]]:
    """Take `count` steps; also return, for each step, whether an episode ended, its return and its length."""
    capacity = config.buffer_size
    exploring = config.exploration_fraction * config.total_steps

    def schedule(start: float, end: float, steps: float, step: jax.Array) -> jax.Array:
        return start + (end - start) * jnp.minimum(1.0, step / steps) if steps else jnp.float32(end)

    def learn(carry: Carry) -> tuple[jax.Array, Any]:
        key = jax.random.fold_in(jax.random.wrap_key_data(carry.key), carry.step)
        rate = schedule(config.learning_rate, config.final_learning_rate, config.total_steps, carry.step)
        drawn = jax.random.randint(key, (config.updates, config.batch_size), 0, jnp.minimum(carry.step, capacity))

        def one(parts: tuple[jax.Array, Any], chosen: jax.Array) -> tuple[tuple[jax.Array, Any], None]:
            batch = tuple(
                each[chosen]
                for each in (carry.observations, carry.actions, carry.rewards, carry.following, carry.terminated)
            )
            return learner.pure_step(*parts, carry.target, batch, rate), None

        parts, _ = jax.lax.scan(one, (carry.online, carry.slots), drawn)
        return parts

    def body(
        carry: Carry, drawn: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[Carry, tuple[jax.Array, jax.Array, jax.Array]]:
        luck, choice, restart = drawn
        epsilon = schedule(config.initial_epsilon, config.final_epsilon, exploring, carry.step)
        action = jax.lax.cond(
            luck < epsilon,
            lambda: choice,
            lambda: learner.pure_greedy(carry.online, carry.state[None])[0].astype(jnp.int32),
        )
        following, reward, terminated = world.step(carry.state, action)
        place = carry.step % capacity
        value, length = carry.value + reward, carry.length + 1
        ended = terminated | (length >= most)
        step = carry.step + 1
        target = jnp.where(step % config.target_interval == 0, carry.online, carry.target)
        carry = carry._replace(
            step=step,
            state=jnp.where(ended, restart, following),
            value=jnp.where(ended, 0.0, value),
            length=jnp.where(ended, 0, length),
            observations=carry.observations.at[place].set(carry.state),
            actions=carry.actions.at[place].set(action),
            rewards=carry.rewards.at[place].set(reward),
            following=carry.following.at[place].set(following),
            terminated=carry.terminated.at[place].set(terminated.astype(jnp.float32)),
            target=target,
        )
        due = (step % config.train_interval == 0) & (step >= config.learning_starts)
        online, slots = jax.lax.cond(due, learn, lambda carry: (carry.online, carry.slots), carry)
        return carry._replace(online=online, slots=slots), (ended, value, length)

    # Drawn for all steps at once: with one key per step, the random numbers would cost more than the environment.
    key, *streams = jax.random.split(jax.random.wrap_key_data(carry.key), 4)
    drawn = (
        jax.random.uniform(streams[0], (count,)),
        jax.random.randint(streams[1], (count,), 0, world.ACTIONS),
        jax.vmap(world.reset)(jax.random.split(streams[2], count)),
    )
    return jax.lax.scan(body, carry._replace(key=jax.random.key_data(key)), drawn)
