"""The scales of observations and rewards of an on-policy loop, which all ranks share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl import checkpoint
from hpcrl.rl.distributed.collective import Collective
from hpcrl.rl.normalization import Moments, centred, merged, moments_of, none_yet, scaled

Floats = NDArray[np.float32]


class Scales:
    """Normalises what the settings ask for, by moments that change between rollouts only."""

    def __init__(self, inputs: int, environments: int, settings: Any, collective: Collective | None) -> None:
        self._settings, self._collective = settings, collective
        self._moments = {"observations": none_yet(inputs), "returns": none_yet()}
        self._discounted = np.zeros(environments, np.float32)
        self._returns: list[Floats] = []

    def observations(self, observations: Floats) -> Floats:
        """Return observations (..., inputs) as the policy sees them."""
        if not self._settings.normalize_observations:
            return observations
        shown: Floats = centred(observations, self._moments["observations"])
        return shown

    def moments(self) -> Moments | None:
        """Return the moments of :meth:`observations`; None if it returns them as they are."""
        return self._moments["observations"] if self._settings.normalize_observations else None

    def step(self, rewards: Floats, ended: NDArray[np.bool_]) -> None:
        """Take the rewards (environments,) of a step, for the discounted returns since the start of each episode."""
        if self._settings.normalize_rewards:
            self._discounted = self._settings.gamma * self._discounted + rewards
            self._returns.append(self._discounted.copy())
            self._discounted[ended] = 0.0

    def rewards(self, rewards: Floats) -> Floats:
        """Return the rewards (steps, environments) of the rollout that is now complete, by the spread of all returns."""
        if not self._settings.normalize_rewards:
            return rewards
        self._take_in("returns", np.concatenate(self._returns))
        self._returns = []
        values: Floats = scaled(rewards, self._moments["returns"])
        return values

    def learn(self, observations: Floats) -> None:
        """Take the observations (steps, environments, inputs) of a rollout, for the next ones."""
        if self._settings.normalize_observations:
            self._take_in("observations", observations.reshape(-1, observations.shape[-1]))

    def _take_in(self, name: str, rows: Floats) -> None:
        batch = moments_of(rows)
        if self._collective:
            mean = self._average(batch.mean)
            # The mean of squares minus the square of the mean would lose a variance that is small beside the mean.
            variance = self._average(batch.variance + (batch.mean - mean) ** 2)
            batch = Moments(mean, variance, np.float32(len(rows) * self._collective.ranks))
        self._moments[name] = merged(self._moments[name], batch)

    def _average(self, values: Any) -> Any:
        assert self._collective
        return self._collective.average_array(np.atleast_1d(values)).reshape(np.shape(values))

    def state(self) -> checkpoint.NamedArrays:
        """Return the moments. Episodes are not continued, nor their returns."""
        arrays: checkpoint.NamedArrays = {}
        for name, moments in self._moments.items():
            parts = {part: np.asarray(value) for part, value in moments._asdict().items()}
            arrays |= checkpoint.nested(name, parts)
        return arrays

    def load_state(self, arrays: checkpoint.NamedArrays) -> None:
        """Restore what :meth:`state` returned."""
        self._moments = {name: Moments(**checkpoint.part(name, arrays)) for name in self._moments}
