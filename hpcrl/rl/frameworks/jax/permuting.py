"""Random permutations for compiled loops."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

_State = tuple[jax.Array, jax.Array, jax.Array]


def permutations(key: jax.Array, count: int, size: int) -> jax.Array:
    """Return random permutations (count, size) of the numbers below `size`, at most 2**24.

    A round sorts one array, of random bits with the place in their lowest bits: on a CPU that takes a sixth of the time in which
    `jax.random.permutation` sorts places by keys. Places with equal bits keep their order in a round, so another one follows where there are
    such places, up to as many rounds as make them unlikely in all, by the same rule as there: their bits have 3 log2(size) together.
    """
    low = (size - 1).bit_length()
    places = jnp.arange(size, dtype=jnp.uint32)
    rounds = max(1, math.ceil(3 * math.log2(size) / (32 - low)))

    def permutation(key: jax.Array) -> jax.Array:
        def once_more(state: _State) -> _State:
            order, number, _ = state
            bits = jax.random.bits(jax.random.fold_in(key, number), (size,), jnp.uint32) >> low
            drawn = jnp.sort((bits << low) | places)
            equal = drawn[1:] >> low == drawn[:-1] >> low
            return order[drawn & jnp.uint32(2**low - 1)], number + 1, equal.any()

        beginning = (places, jnp.int32(0), jnp.bool(True))
        return jax.lax.while_loop(lambda state: state[2] & (state[1] < rounds), once_more, beginning)[0]

    return jax.lax.map(permutation, jax.random.split(key, count)).astype(jnp.int32)
