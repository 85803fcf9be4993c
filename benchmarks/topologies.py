"""What messages cost, and how much faster actors are where a step of the environment waits for a simulator.

python -m benchmarks.topologies [LATENCY_MS]

1. Messages: a learner and one actor in turns, a 4-256-256-2 network, cycles of 100 steps and 100 updates. What a cycle takes more than the
   work of both ranks is the cost of the messages: packing, sending, waking up, unpacking.
2. Speed-up: the same steps and updates in one process and with 1, 2, 4 and 8 actors, when every step waits LATENCY_MS (5) for a simulator.
   The best possible is the model max(T_simulate / actors, T_learn), from the phases of the run in one process. Sleeping actors need no core.
   Beside it: the same training with as many environments in Gymnasium's AsyncVectorEnv, which step together, and nobody learns meanwhile.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.training_speed import python_of
from hpcrl.formats.worker import worker_zip

HERE = Path(__file__).parent
ACTORS = (1, 2, 4, 8)
ROUNDS = 2  # the faster one counts: other work on the machine only slows
WORK = ("env_step", "act", "replay", "transfer", "update", "other", "evaluate")


def main(latency: float = 5.0) -> None:
    with tempfile.TemporaryDirectory() as place:
        worker = Path(place) / "worker.zip"
        worker.write_bytes(worker_zip())
        messages(worker)
        speed_up(worker, latency / 1000)


def messages(worker: Path) -> None:
    """Print the cost of the messages of a cycle."""
    settings = {
        "hidden": [256, 256],
        "total_steps": 6000,
        "train_interval": 100,
        "updates": 100,
        "learning_starts": 100,
    }
    alone = fastest(worker, 1, settings)
    pair = settings | {"topology": "pairwise", "overlap": False}
    both = fastest(worker, 2, pair)
    cycles = 60
    work = sum(ranks.get(phase, 0.0) for ranks in both["ranks"] for phase in WORK)
    cost = (both["wall"] - work) / cycles
    update = both["ranks"][0]["update"] / cycles
    print(
        "Messages of a learner and one actor in turns, 4-256-256-2 (271 kB of weights), 100 steps and 100 updates a cycle"
    )
    print(
        f"  a cycle {both['wall'] / cycles * 1e3:.2f} ms (one process: {alone['wall'] / cycles * 1e3:.2f} ms), of which 100 updates {update * 1e3:.2f} ms"
    )
    print(
        f"  packing and sending {both['ranks'][0]['send'] / cycles * 1e6:.0f} us (learner), {both['ranks'][1]['send'] / cycles * 1e6:.0f} us (actor), "
        f"unpacking {both['ranks'][0]['receive'] / cycles * 1e6:.0f} us (learner), {both['ranks'][1]['receive'] / cycles * 1e6:.0f} us (actor)"
    )
    print(
        f"  all that is not work of one of the two: {cost * 1e6:.0f} us, {100 * cost / (both['wall'] / cycles):.2f} % of a cycle",
        flush=True,
    )


def speed_up(worker: Path, latency: float) -> None:
    """Print the speed-up of actors, beside the model's."""
    settings = {
        "hidden": [64, 64],
        "total_steps": 4096,
        "train_interval": 128,
        "updates": 64,
        "learning_starts": 128,
        "step_latency": latency,
    }
    alone = fastest(worker, 1, settings)
    phases = alone["ranks"][0]
    simulate = sum(phases.get(phase, 0.0) for phase in ("env_step", "act", "replay"))
    learn = phases["update"] + phases["transfer"]
    print(
        f"4,096 steps, {latency * 1e3:g} ms each: one process {alone['wall']:.2f} s (simulating {simulate:.2f}, learning {learn:.2f})"
    )
    print(
        f"  {'actors':>6} {'model':>7}"
        + "".join(f" {name:>13} {'of model':>9} {'staleness':>10}" for name in ("collective", "asynchronous"))
        + " AsyncVectorEnv"
    )
    for actors in ACTORS:
        model = alone["wall"] / max(simulate / actors, learn)
        line = f"  {actors:>6} {model:7.2f}"
        for topology in ("collective", "asynchronous"):
            asked = settings | {"topology": topology, "actors": actors}
            run = fastest(worker, actors + 1, asked)
            ages = {int(age): number for age, number in run["facts"]["staleness"].items()}
            mean = sum(age * number for age, number in ages.items()) / sum(ages.values())
            line += f" {alone['wall'] / run['wall']:13.2f} {alone['wall'] / run['wall'] / model:9.2f} {mean:10.2f}"
        peer = fastest(worker, 1, settings, "benchmarks.vector_program", str(actors))
        print(f"{line} {alone['wall'] / peer['wall']:14.2f}", flush=True)


def fastest(worker: Path, ranks: int, settings: dict[str, Any], *program: str) -> dict[str, Any]:
    """Return the fastest of some trainings."""
    return min((trained(worker, ranks, settings, *program) for _ in range(ROUNDS)), key=lambda each: each["wall"])


def trained(
    worker: Path, ranks: int, settings: dict[str, Any], module: str = "benchmarks.topology_program", *more: str
) -> dict[str, Any]:
    """Return wall time and phases of one training on so many ranks."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        sys.exit("mpirun: not found on PATH: install Open MPI")
    whole = {"acting": "numpy", "evaluation_interval": 10**6, "evaluation_episodes": 1, **settings}
    words = [
        mpirun,
        "-np",
        str(ranks),
        "--bind-to",
        "none",
        "--oversubscribe",
        "--mca",
        "btl",
        "self,vader",
        "--mca",
        "pml",
        "ob1",
    ]
    words += [python_of("torch"), "-m", module, json.dumps(whole), *more]
    own = {"OMP_NUM_THREADS": "1", "OMPI_MCA_mpi_yield_when_idle": "1", "PYTHONPATH": f"{worker}:{HERE.parent}"}
    own |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    out = subprocess.run(words, env=os.environ | own, stdout=subprocess.PIPE, text=True, check=True).stdout
    facts: dict[str, Any] = json.loads(out.splitlines()[-1])
    return facts


if __name__ == "__main__":
    main(*[float(text) for text in sys.argv[1:2]])
