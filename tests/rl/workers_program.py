"""Run in a process of its own: a process for each of some environments, where few files may be open; as JSON."""

from __future__ import annotations

import json
import resource
import sys
from functools import partial

import numpy as np

from hpcrl.errors import HpcrlError
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.vector.make import make_vector


def main(count: int, soft: int, hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    make = partial(gymnasium_environment, "Doors-v0", 20, {"size": 5})
    try:
        environments = make_vector("pipes", make, count, "environments")
    except HpcrlError as error:
        print(json.dumps({"error": str(error)}))
        return
    environments.reset(range(count))
    ended = sum(environments.step(np.zeros(count, np.int64)).ended.sum() for _ in range(20))
    environments.close()
    print(json.dumps({"ended": int(ended), "limit": resource.getrlimit(resource.RLIMIT_NOFILE)}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
