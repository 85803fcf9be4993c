"""Microseconds of a step of one CartPole, of many that step together, on one core.

python -m benchmarks.stepping [CORE]

The whole loop of 512 steps compiled by JAX: hpcrl beside gymnax. The same loop in Python: hpcrl's ways of stepping beside EnvPool with one thread.
All run in hpcrl's environment of JAX. gymnax, EnvPool, and what they import besides, are installed into a directory for the time of the run.
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


def main(core: int | None = None) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0)) if core is None else core})
    python = python_of("jax")
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "worker.zip").write_bytes(worker_zip())
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place, *PEERS]
        subprocess.run(pip, check=True)
        path = f"{directory / 'worker.zip'}:{Path(__file__).parents[1]}:{place}"
        for count in COUNTS:
            words = [python, "-m", "benchmarks.stepping_program", str(count)]
            done = subprocess.run(
                words, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True
            )
            found = json.loads(done.stdout.splitlines()[-1])
            if count == COUNTS[0]:
                print(f"{'environments':>12}" + "".join(f"  {name:>28}" for name in found))
            print(f"{count:12}" + "".join(f"  {value:28.2f}" for value in found.values()), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
