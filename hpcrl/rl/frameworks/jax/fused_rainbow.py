"""Rainbow's replay and exploration inside the compiled loop: those of hpcrl.rl.replay.nstep and hpcrl.rl.algorithms.rainbow.

The ring has single transitions. Their windows are put together when they are drawn, and have a priority once they are
complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hpcrl.rl.envs.jax.world import World
from hpcrl.rl.frameworks.jax import fused_dqn
from hpcrl.rl.frameworks.jax.core import Learner
from hpcrl.rl.replay.nstep import SMALLEST

Memory = dict[str, jax.Array]


def empty(world: World, settings: Any) -> tuple[Memory, Memory]:
    """Return the empty rings of `buffer_size` transitions, and the priorities of the windows that begin with them."""
    stored, _ = fused_dqn.empty(world, settings)
    columns = math.isqrt(settings.buffer_size - 1) + 1
    rows = -(-settings.buffer_size // columns)
    numbers = {"outside": jnp.float32(0.0), "updates": jnp.int32(0)}
    scores = {"priorities": jnp.zeros(rows * columns), "largest": jnp.float32(1.0), **numbers}
    return stored | {"ended": jnp.zeros(settings.buffer_size)}, scores


def added(settings: Any, stored: Memory, scores: Memory, happened: Any) -> tuple[Memory, Memory]:
    """Store a transition over the oldest. Windows that are complete with it get the largest priority."""
    stored_, _ = fused_dqn.added(settings, stored, scores, happened)
    ended = stored["ended"].at[happened.place].set(happened.ended.astype(jnp.float32))
    back = jnp.arange(settings.n_step)
    places = (happened.place - back) % settings.buffer_size
    # The window that began `back` steps ago: full only now, or cut short by the end of the episode.
    complete = (back < happened.length) & ((back == settings.n_step - 1) | happened.ended)
    # The new transition's own window takes the place of an older one.
    priorities = scores["priorities"].at[happened.place].set(0.0)
    priorities = priorities.at[places].set(jnp.where(complete, scores["largest"], priorities[places]))
    return stored_ | {"ended": ended}, scores | {"priorities": priorities}


def draws(settings: Any, key: jax.Array, step: jax.Array) -> jax.Array:
    """Return the random keys of the updates of an interval."""
    return jax.random.split(key, settings.updates)


def sample(learner: Learner, stored: Memory, scores: Memory, drawn: jax.Array, step: jax.Array) -> Any:
    """Return the batch of an update, and its places."""
    settings = learner.algorithm.settings
    luck, *noise = jax.random.split(drawn, 3)
    priorities, count = scores["priorities"], settings.batch_size
    total = priorities.sum()
    shares = jax.random.uniform(luck, (count,))
    chosen = places(priorities, (jnp.arange(count) + shares) / count if settings.prioritized else shares)
    weights = jnp.ones(count)
    if settings.prioritized:
        beta = schedule_of_importance(settings, step)
        weights = ((priorities > 0).sum() * priorities[chosen] / total) ** -beta
    noises = [drawn_noise(learner, key) for key in noise]
    return (*windows(settings, stored, chosen), weights / weights.max(), *noises), chosen


def schedule_of_importance(settings: Any, step: jax.Array) -> jax.Array:
    """Return the exponent of importance weights, which goes linearly to 1."""
    first = settings.initial_importance
    return first + (1 - first) * jnp.minimum(1.0, step / settings.total_steps)


def places(priorities: jax.Array, shares: jax.Array) -> jax.Array:
    """Return the places (n,) at which the running sum of the priorities first exceeds `shares` (n,) of the total.

    Two levels of about sqrt(capacity) sums instead of a tree: nothing has to be kept up. A priority of 0 is never drawn.
    """
    columns = math.isqrt(len(priorities) - 1) + 1
    table = priorities.reshape(-1, columns)
    upto = jnp.cumsum(table.sum(1))
    sought = shares * upto[-1]
    # Sums are rounded: what is sought may lie beyond the last priority. argmax finds the first of equal values.
    row = jnp.minimum(jnp.searchsorted(upto, sought, side="right"), upto.argmax())
    rest = sought - jnp.where(row > 0, upto[row - 1], 0.0)
    within = jnp.cumsum(table[row], axis=1)
    over = within > jnp.maximum(rest, 0.0)[:, None]
    column = jnp.where(over.any(1), over.argmax(1), within.argmax(1))
    return row * columns + column


def windows(settings: Any, stored: Memory, chosen: jax.Array) -> tuple[jax.Array, ...]:
    """Return observations, actions, returns, following and discounts of the complete windows that begin at these places."""
    steps = jnp.arange(settings.n_step)
    path = (chosen[:, None] + steps) % settings.buffer_size
    before = jnp.cumsum(stored["ended"][path], axis=1) - stored["ended"][path]
    part = before == 0  # up to the end of the episode
    returns = (part * settings.gamma**steps * stored["rewards"][path]).sum(1)
    length = part.sum(1)
    last = path[jnp.arange(len(chosen)), length - 1]
    discounts = settings.gamma**length * (1 - stored["terminated"][last])
    return stored["observations"][chosen], stored["actions"][chosen], returns, stored["following"][last], discounts


def prioritized(settings: Any, scores: Memory, chosen: jax.Array, aux: Any) -> Memory:
    """Return the scores after an update: the losses of the windows are their priorities."""
    losses, outside = aux
    scores = scores | {"outside": scores["outside"] + outside.mean(), "updates": scores["updates"] + 1}
    if not settings.prioritized:
        return scores
    changed = (jnp.abs(losses) + SMALLEST) ** settings.priority_exponent
    largest = jnp.maximum(scores["largest"], changed.max())
    return scores | {"priorities": scores["priorities"].at[chosen].set(changed), "largest": largest}


def measures(scores: Memory) -> dict[str, float]:
    """Return the mean of what the loss also returns: the mass outside of the support."""
    return {"outside": float(scores["outside"] / scores["updates"])} if scores["updates"] else {}


def drawn_noise(learner: Learner, key: jax.Array) -> jax.Array:
    """Draw a noise vector; without noisy layers one zero."""
    ((network,),) = learner.algorithm.groups.values()
    if not network.noise_size:
        return jnp.zeros(1)
    values = jax.random.normal(key, (network.noise_size,))
    return jnp.sign(values) * jnp.sqrt(jnp.abs(values))


def epsilon(settings: Any, step: jax.Array) -> jax.Array:
    """Return the probability of a random action: 0 with noisy layers."""
    return jnp.float32(0.0) if settings.noisy else fused_dqn.epsilon(settings, step)


def policy(learner: Learner, vector: jax.Array) -> Callable[[Any, jax.Array], jax.Array]:
    """Return the choice of the greedy action with new noise by the loop's state and step, for steps that do not change the vector."""
    sample = learner.policy("sample", vector)

    def choose(own: Any, step: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(own.key), -1 - step)
        (actions,) = sample(own.state[None], drawn_noise(learner, key))
        return actions[0].astype(jnp.int32)

    return choose
