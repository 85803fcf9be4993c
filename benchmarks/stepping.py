"""Microseconds of a step of one environment, of many that step together, on one core: CartPole and Doors.

python -m benchmarks.stepping [CORE]

The whole loop of 512 steps compiled by JAX: hpcrl beside gymnax, which has CartPole and Catch of the size of Doors, and gets the rules of Doors.
The same loop in Python: hpcrl's ways of stepping beside Gymnasium's SyncVectorEnv and EnvPool with one thread. All run in hpcrl's environment of JAX. gymnax, EnvPool, and what they import besides, are installed into a directory for the time of the run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.training_speed import python_of
from hpcrl.formats.worker import worker_zip

PEERS = (
    "gymnax==1.0.1", "envpool==0.8.4", "gym==0.26.2", "gym-notices", "dm-env==1.6", "optree", "types-protobuf", "matplotlib", "seaborn", "contourpy", "cycler", "fonttools", "kiwisolver", "pyparsing", "python-dateutil", "six",
    "pillow", "pandas", "packaging",
)  # fmt: skip
COUNTS = (1, 16, 256, 4096)
ENVIRONMENTS = ("CartPole-v1", "Doors-v0")


def main(core: int | None = None) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0)) if core is None else core})
    python = python_of("jax")
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "worker.zip").write_bytes(worker_zip())
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place, *PEERS]
        subprocess.run(pip, check=True)
        path = f"{directory / 'worker.zip'}:{Path(__file__).parents[1]}:{place}"
        for environment in ENVIRONMENTS:
            found = [_measured(python, path, environment, count) for count in COUNTS]
            print(f"{environment:>34}" + "".join(f"{count:10,}" for count in COUNTS))
            for name in found[0]:
                print(f"{name:>34}" + "".join(f"{each[name]:10.2f}" for each in found), flush=True)


def _measured(python: str, path: str, environment: str, count: int) -> dict[str, float]:
    """Return the microseconds of a step by the loop's name."""
    words = [python, "-m", "benchmarks.stepping_program", environment, str(count)]
    done = subprocess.run(
        words,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
