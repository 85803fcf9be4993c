"""What it costs that the C library gives memory back to the kernel after each update, and what hpcrl.run.heap saves.

python -m benchmarks.freed_memory [FRAMEWORK EXECUTION]

Trains DQN, PPO and Rainbow on CartPole by their default settings, with one thread: microseconds of CPU time and page faults of an environment
step, by glibc's own thresholds and by hpcrl's. The least time of some runs in turn, and the faults of that run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.training_speed import one_thread, python_of
from hpcrl.formats.worker import worker_zip

ROUNDS = 3
MODES = (
    ("numpy", "eager"),
    ("torch", "eager"),
    ("torch", "lazy"),
    ("tensorflow", "lazy"),
    ("jax", "lazy"),
    ("mxnet", "lazy"),
)
WAYS = ("glibc", "hpcrl")


def main(*only: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        worker = Path(place) / "worker.zip"
        worker.write_bytes(worker_zip())
        environment = one_thread(f"{worker}:{Path(__file__).parents[1]}")
        print(f"{'':<28} {'us a step':>20} {'ratio':>6} {'faults a step':>20}")
        print(f"{'':<28} {'glibc':>10}{'hpcrl':>10} {'':>6} {'glibc':>10}{'hpcrl':>10}")
        for algorithm in ("dqn", "ppo", "rainbow"):
            for mode in MODES:
                if not only or mode == only:
                    _compare(algorithm, *mode, environment)


def _compare(algorithm: str, framework: str, execution: str, environment: dict[str, str]) -> None:
    runs: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, several in runs.items():
            words = [
                python_of(framework),
                "-m",
                "benchmarks.freed_memory_program",
                way,
                algorithm,
                framework,
                execution,
            ]
            done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            several.append((1e6 * found["seconds"], found["faults"]))
    (before, faults), (after, fewer) = (min(several) for several in runs.values())
    name = f"{algorithm} {framework} {execution}"
    print(f"{name:<28} {before:10.1f}{after:10.1f} {before / after:6.2f} {faults:10.1f}{fewer:10.1f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
