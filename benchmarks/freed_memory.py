"""What it costs that the C library gives memory back to the kernel after each update, and what hpcrl.run.heap saves.

python -m benchmarks.freed_memory

Trains DQN, PPO and Rainbow on CartPole by their default settings, with one thread: microseconds of CPU time and page faults of an environment
step, by glibc's own thresholds and by hpcrl's. The least time of some runs in turn, and the faults of that run.
"""

from __future__ import annotations

import json
import subprocess
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
# hpcrl leaves the allocator as it is where a variable sets it; this one changes nothing.
WAYS = {"glibc's": {"MALLOC_PERTURB_": "0"}, "hpcrl's": {}}


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        worker = Path(place) / "worker.zip"
        worker.write_bytes(worker_zip())
        environment = one_thread(f"{worker}:{Path(__file__).parents[1]}")
        print(f"{'':<28} {'us a step':>20} {'ratio':>6} {'faults a step':>20}")
        print(f"{'':<28} {'glibc':>10}{'hpcrl':>10} {'':>6} {'glibc':>10}{'hpcrl':>10}")
        for algorithm in ("dqn", "ppo", "rainbow"):
            for framework, execution in MODES:
                words = [python_of(framework), "-m", "benchmarks.freed_memory_program", algorithm, framework, execution]
                runs: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
                for _ in range(ROUNDS):
                    for way, variables in WAYS.items():
                        done = subprocess.run(
                            words, env=environment | variables, capture_output=True, text=True, check=True
                        )
                        found = json.loads(done.stdout.splitlines()[-1])
                        runs[way].append((1e6 * found["seconds"], found["faults"]))
                (before, faults), (after, fewer) = (min(several) for several in runs.values())
                print(
                    f"{algorithm + ' ' + framework + ' ' + execution:<28} {before:10.1f}{after:10.1f} {before / after:6.2f} {faults:10.1f}{fewer:10.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
