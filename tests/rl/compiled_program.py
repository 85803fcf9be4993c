"""Run in JAX's environment: compiled environments beside Gymnasium's, as JSON."""

from __future__ import annotations

import json
from functools import partial

import gymnasium
import numpy as np

from hpcrl.rl.vector.make import make_vector


def main() -> None:
    make = partial(gymnasium.make, "CartPole-v1", max_episode_steps=30)
    environments = make_vector("compiled", make, 3)
    first = environments.reset([1, 2, 3])
    single = make()
    draw = np.random.default_rng(0)
    observations, apart, starts = first, 0.0, []
    outcomes: dict[str, list[bool]] = {}
    lengths = np.zeros(3, int)
    for _ in range(300):
        # The first environment balances, so that it is cut off; the others fall.
        actions = np.array([int(observations[0, 2] + observations[0, 3] > 0), *draw.integers(0, 2, 2)])
        found = environments.step(actions)
        lengths += 1
        for index in range(3):
            single.reset()
            single.unwrapped.state = observations[index].astype(np.float64)
            wanted, reward, over, _, _ = single.step(int(actions[index]))
            apart = max(
                apart, float(np.abs(found.last[index] - wanted).max()), abs(float(found.rewards[index]) - reward)
            )
            assert bool(found.terminated[index]) == over
            if found.ended[index]:
                kind = "fallen" if over else "cut off"
                assert over or lengths[index] == 30
                outcomes[kind] = [bool(over), bool(found.ended[index])]
                starts.append(found.observations[index].tolist())
                assert np.abs(starts[-1]).max() <= 0.05
                lengths[index] = 0
            else:
                assert found.observations[index].tolist() == found.last[index].tolist()
        observations = found.observations
    again, other = environments.reset([1, 2, 3]), environments.reset([4, 5, 6])
    facts = {
        "apart": apart,
        **outcomes,
        "starts differ": len({tuple(start) for start in starts}) == len(starts),
        "same seed": again.tolist() == first.tolist(),
        "seeds differ": len(np.unique(np.concatenate([first, other])[:, 0])) == 6,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
