"""What messages cost, and how much faster actors are where a step of the environment waits for a simulator.

python -m benchmarks.topologies [LATENCY_MS]

1. Messages: a learner and one actor in turns, a 4-256-256-2 network, cycles of 100 steps and 100 updates. What a cycle takes more than the
   work of both ranks is the cost of the messages: packing, sending, waking up, unpacking. What one process takes for its replay is work.
2. Speed-up: the same steps and updates in one process and with 1, 2, 4 and 8 actors, when every step waits LATENCY_MS (5) for a simulator.
   The best possible is the model max(T_simulate / actors, T_learn), from the phases of the run in one process. Sleeping actors need no core.
   Beside it: the same training with as many environments in Gymnasium's AsyncVectorEnv, which step together, and nobody learns meanwhile.
   And DQN of Ray RLlib with as many environment runners, which samples and learns in turn: with the same updates for each step, and sampling alone.
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
TOPOLOGIES = ("collective", "asynchronous")
SIMULATING, LEARNING = ("env_step", "act"), ("replay", "transfer", "update")
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
    learner, actor = both["ranks"]
    # One process also stores transitions and draws batches: what both ranks take more for it is packing, a part of the messages.
    own = sum(ranks.get(phase, 0.0) for ranks in (learner, actor) for phase in WORK if phase != "replay")
    work = own + alone["ranks"][0]["replay"]
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
    settings: dict[str, Any] = {
        "hidden": [64, 64],
        "total_steps": 4096,
        "train_interval": 128,
        "updates": 64,
        "learning_starts": 128,
        "step_latency": latency,
    }
    alone = fastest(worker, 1, settings)
    phases = alone["ranks"][0]
    simulate = sum(phases.get(phase, 0.0) for phase in SIMULATING)
    learn = sum(phases.get(phase, 0.0) for phase in LEARNING)
    steps = settings["total_steps"]
    print(
        f"{steps:,} steps, {latency * 1e3:g} ms each: one process {alone['wall']:.2f} s (simulating {simulate:.2f}, learning {learn:.2f})"
    )
    print(
        f"  {'actors':>6} {'model':>7}"
        + "".join(f" {name:>13} {'of model':>9} {'ms a step':>10} {'staleness':>10}" for name in TOPOLOGIES)
        + " AsyncVectorEnv"
    )
    walls: dict[int, list[float]] = {}
    for actors in ACTORS:
        model = alone["wall"] / max(simulate / actors, learn)
        line, walls[actors] = f"  {actors:>6} {model:7.2f}", []
        for topology in TOPOLOGIES:
            run = fastest(worker, actors + 1, settings | {"topology": topology, "actors": actors})
            ages = {int(age): number for age, number in run["facts"]["staleness"].items()}
            mean = sum(age * number for age, number in ages.items()) / sum(ages.values())
            own = sum(ranks.get(phase, 0.0) for ranks in run["ranks"][1:] for phase in SIMULATING)
            speed = alone["wall"] / run["wall"]
            line += f" {speed:13.2f} {speed / model:9.2f} {own / steps * 1e3:10.2f} {mean:10.2f}"
            walls[actors].append(run["wall"])
        walls[actors].append(fastest(worker, 1, settings, "benchmarks.vector_program", str(actors))["wall"])
        print(f"{line} {alone['wall'] / walls[actors][-1]:14.2f}", flush=True)
    print("Environment steps a second, with 64 updates for 128 steps, and of RLlib's environment runners alone")
    print(
        f"  {'actors':>6}"
        + "".join(f" {name:>15}" for name in (*TOPOLOGIES, "AsyncVectorEnv", "RLlib", "RLlib, alone"))
    )
    for actors, seconds in walls.items():
        every = [*seconds, rllib(settings, actors), rllib(settings | {"updates": 0}, actors)]
        print(f"  {actors:>6}" + "".join(f" {steps / wall:15.0f}" for wall in every), flush=True)


def rllib(settings: dict[str, Any], runners: int) -> float:
    """Return the least wall time of some trainings of RLlib."""
    words = [
        python_of("rllib"),
        str(HERE / "rllib_program.py"),
        json.dumps({"batch_size": 64, **settings}),
        str(runners),
    ]
    own = os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    runs = (subprocess.run(words, env=own, capture_output=True, text=True, check=True).stdout for _ in range(ROUNDS))
    return min(float(json.loads(out.splitlines()[-1])["wall"]) for out in runs)


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
    own = {"OMP_NUM_THREADS": "1", "OMPI_MCA_mpi_yield_when_idle": "0", "PYTHONPATH": f"{worker}:{HERE.parent}"}
    own |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    out = subprocess.run(words, env=os.environ | own, stdout=subprocess.PIPE, text=True, check=True).stdout
    facts: dict[str, Any] = json.loads(out.splitlines()[-1])
    return facts


if __name__ == "__main__":
    main(*[float(text) for text in sys.argv[1:2]])
