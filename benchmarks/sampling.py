"""What measuring costs: the sampler's own CPU and memory, beside a plain psutil walk, and its effect on a training.

    python -m benchmarks.sampling

First with 430 other processes on the machine: the sampler watches a job of three processes, then one of 430. The peer
does what a sampler without care does: psutil's cpu and memory of every process below the job. Then a training (DQN
in NumPy, one core, the sampler on the same core) takes short windows by turns with the sampler and with it suspended,
so that a neighbour's noise falls on both. A sampler that goes on reads at once: it reads more than once a second here.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time

PROCESSES, SECONDS = 430, 30
STEPS = 1_536  # six blocks of updates, so that each window has as many; less than a second
EFFECTS = ((1.0, 400), (0.05, 100))  # seconds between samples, turns
_JOB = """
import subprocess, sys, time
children = [subprocess.Popen(["sleep", "1000"]) for _ in range(int(sys.argv[1]))]
print("ready", flush=True)
try:
    sys.stdin.read()
finally:
    for child in children:
        child.kill()
"""
_WALK = """
import psutil, sys, time
root = psutil.Process(int(sys.argv[1]))
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    for each in [root, *root.children(recursive=True)]:
        each.cpu_times(), each.memory_info()
    psutil.cpu_percent(percpu=True), psutil.virtual_memory()
    time.sleep(1)
"""
_TRAINING = """
import os, sys, time
from pathlib import Path
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
import gymnasium, psutil
from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.rl.runs import Run
from hpcrl.rl.make import make_training
from hpcrl.rl.train import train
from hpcrl.run.recorder import Recorder, Sampler
from hpcrl.telemetry.phases import PhaseClock

steps, turns = int(sys.argv[2]), int(sys.argv[3])
recorder = Recorder(Path(sys.argv[1]) / "training.rec", clock := PhaseClock())
sampler = Sampler(recorder, os.getpid(), float(sys.argv[4]), dict(os.environ))
(process,) = psutil.Process().children()
while not recorder.sampler_cost:
    time.sleep(0.01)
windows = iter([True] + [sampled for turn in range(turns) for sampled in ((True, False), (False, True))[turn % 2]])
taken, began, sampled = 0, None, True

def next_window():
    global taken, began, sampled
    if began is not None:
        print(sampled, time.perf_counter() - began, flush=True)
    sampled = next(windows, True)
    process.resume() if sampled else process.suspend()
    taken, began = 0, time.perf_counter()

def stop():
    global taken
    if taken % steps == 0:
        next_window()
    taken += 1
    return False

settings = Settings(total_steps=(2 * turns + 1) * steps, evaluation_interval=10**9)
run = Run(1, recorder, clock)
train(make_training("dqn", settings, "numpy", "eager", lambda: gymnasium.make("CartPole-v1"), run), None, stop)
next_window()
sampler.stop()
"""


def cost(own: int, others: int) -> dict[str, float]:
    """Return the sampler's and the plain walk's share of one core (%), and the sampler's memory (MiB)."""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", _JOB, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in (own, others)
    ]
    try:
        for job in jobs:
            assert job.stdout is not None
            job.stdout.readline()
        sampler = subprocess.Popen(
            [sys.executable, "-m", "hpcrl.telemetry.sampler", str(jobs[0].pid), "1.0"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert sampler.stdin is not None and sampler.stdout is not None
        time.sleep(3)  # imports
        samples = [json.loads(sampler.stdout.readline())]
        while samples[-1]["monotonic"] - samples[0]["monotonic"] < SECONDS:
            samples.append(json.loads(sampler.stdout.readline()))
        sampler.stdin.close()
        sampler.wait()
        spent = samples[-1]["sampler_cpu"] - samples[1]["sampler_cpu"]
        elapsed = samples[-1]["monotonic"] - samples[1]["monotonic"]
        imports = _children_seconds([sys.executable, "-c", "import psutil"])
        walked = _children_seconds([sys.executable, "-c", _WALK, str(jobs[0].pid), str(SECONDS)]) - imports
    finally:
        for job in jobs:
            job.communicate("")
    return {
        "sampler": 100 * spent / elapsed,
        "walk": 100 * walked / SECONDS,
        "memory": samples[-1]["sampler_memory"] / 2**20,
    }


def _children_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def effect(interval: float, turns: int) -> list[float]:
    """Return the steps per second with the sampler over those without, one value for each turn of a training."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-c", _TRAINING, directory, str(STEPS), str(turns), str(interval)]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    windows = [line.split() for line in lines][1:]  # the first one only warms up
    with_it, without = ([float(time) for sampled, time in windows if sampled == name] for name in ("True", "False"))
    return [off / on for on, off in zip(with_it, without, strict=True)]


def middle(values: list[float]) -> str:
    """Return the median and its 95 % interval from order statistics, which hold for any distribution."""
    ordered = sorted(values)
    beyond = int((len(ordered) - 1.96 * len(ordered) ** 0.5) / 2)
    return f"{statistics.median(ordered):.4f} ({ordered[beyond - 1]:.4f} to {ordered[-beyond]:.4f})"


def main() -> None:
    print(f"Share of one core at 1 Hz over {SECONDS} s; a plain psutil walk beside it")
    for name, own, others in (("3 own processes, 430 others", 2, PROCESSES), ("430 own processes", PROCESSES - 1, 0)):
        found = cost(own, others)
        print(
            f"  {name:<30} sampler {found['sampler']:.2f} %, {found['memory']:.0f} MiB; plain walk {found['walk']:.2f} %"
        )
    print(
        "Steps per second of a training with the sampler on its core over those without: median and its 95 % interval"
    )
    for interval, turns in EFFECTS:
        print(f"  {1 / interval:.0f} Hz: {middle(effect(interval, turns))}, {turns} turns", flush=True)


if __name__ == "__main__":
    main()
