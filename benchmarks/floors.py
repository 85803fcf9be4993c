"""What acting and updates of DQN take in each framework, beside the floor: the same operations in the framework's own shortest form.

python -m benchmarks.floors [CORE]

CleanRL's sizes: a network of 4-120-84-2, acting on one observation, updates of 128 transitions with Adam and without clipping. The least CPU time
of a call, in microseconds, of many rounds in turn, on one core. A call of ours goes through the learner, from NumPy's arrays to NumPy's arrays. So does
the floor, without a learner: PyTorch with a gradient by hand, TensorFlow by the name of a concrete function, JAX by a jitted function of flat
vectors, MXNet by a bound symbol; the inputs of these three share memory with NumPy's arrays. Nothing of it can be used for another network. Then the parts of a rollout and its updates of PPO in JAX's fused mode.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.training_speed import one_thread, python_of
from hpcrl.formats.worker import worker_zip

MODES = [
    ("torch", "eager"), ("torch", "lazy"), ("tensorflow", "lazy"), ("tensorflow", "xla"), ("jax", "lazy"),
    ("mxnet", "lazy"),
]  # fmt: skip


def main(core: int | None = None) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0)) if core is None else core})
    print("Least microseconds of CPU time of a call, on one core: ours, the floor, and how many times the floor")
    print(f"  {'':<18} {'acting':>8} {'floor':>8} {'x':>6} {'update':>8} {'floor':>8} {'x':>6}")
    with tempfile.TemporaryDirectory() as place:
        worker = Path(place) / "worker.zip"
        worker.write_bytes(worker_zip())
        environment = one_thread(f"{worker}:{Path(__file__).parents[1]}")
        for framework, execution in MODES:
            words = [python_of(framework), "-m", "benchmarks.floors_program", framework, execution]
            done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            row = "".join(
                f" {found[what]:8.1f} {found[f'{what} floor']:8.1f} {found[what] / found[f'{what} floor']:6.2f}"
                for what in ("act", "update")
            )
            print(f"  {framework + ' ' + execution:<18}{row}", flush=True)
        print("Least microseconds of CPU time of the parts of PPO in JAX's fused mode")
        words = [python_of("jax"), "-m", "benchmarks.fused_parts_program"]
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        for name, microseconds in json.loads(done.stdout.splitlines()[-1]).items():
            print(f"  {name:<40} {microseconds:8.0f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
