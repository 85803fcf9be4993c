"""What outlives a training is counted, ended and noted. The first cases run in a process of their own, whose children are few."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcrl.collect.reading import RecordData
from tests.builders import dqn_study, planned, run_task
from tests.run.test_cell import JOB, only_record

PYTHON = Path(sys.executable).name[:15]
PROGRAM = """
import json, multiprocessing, os, resource, subprocess, sys, time
from multiprocessing import resource_tracker
import psutil
from hpcrl.run.leftovers import end_after_training
from hpcrl.telemetry.processes import adopt_orphans
adopt_orphans()
keep, grace = [], 0.5
{what}
told = end_after_training(keep, grace)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
children = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
print(json.dumps({{"told": told, "left": len(children), "spent": used.ru_utime + used.ru_stime}}))
for child in children:
    child.kill()
"""
FORK = """
reading, writing = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        os.write(writing, b"!")
        time.sleep(600)
    os._exit(0)
os.read(reading, 1)
"""
STUBBORN = """
words = ["sh", "-c", "trap '' TERM; sleep 600 & echo up; wait"]
shell = subprocess.Popen(words, stdout=subprocess.PIPE)
shell.stdout.readline()
"""
DAEMONIC = """
context = multiprocessing.get_context("spawn")
context.Process(target=time.sleep, args=(600,), daemon=True).start()
"""
# As for the processes of environments: TERM does not end it.
SERVER = """
import signal
resource_tracker.ensure_running()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(600,), daemon=True).start()
grace = 600
"""
TRACKER = "resource_tracker.ensure_running()"
KEPT = 'keep.append(subprocess.Popen(["sleep", "600"]).pid)'


def ended(what: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(what=what)], capture_output=True, text=True, check=True, timeout=120
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("what", "told", "left"),
    [
        ("", None, 0),
        (FORK, f"1 process outlived the workload and had to be ended ({PYTHON})", 0),
        (STUBBORN, "2 processes outlived the workload and had to be ended (sh, sleep)", 0),
        (DAEMONIC, None, 1),  # the resource tracker
        (SERVER, None, 1),
        (TRACKER, None, 1),
        (KEPT, None, 1),
    ],
    ids=["nothing", "fork", "stubborn", "daemonic", "server", "tracker", "kept"],
)
def test_all_but_the_libraries_own_processes_is_ended_and_told(what: str, told: str | None, left: int) -> None:
    found = ended(what)
    assert (found["told"], found["left"]) == (told, left)
    if what == FORK:
        assert found["spent"] >= 0.29


def test_a_signal_of_a_forked_process_is_not_the_rank_s() -> None:
    """It has inherited the handlers of the rank, but not the way in which a thread of the rank learns of a signal."""
    code = """
import os, signal
from hpcrl.run.interrupt import Interrupt
Interrupt(ranks=2)
if os.fork() == 0:
    print(signal.set_wakeup_fd(-1), flush=True)
    os._exit(0)
os.wait()
print(signal.set_wakeup_fd(-1) >= 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["-1", "True"]


# The check of the environment takes fewer than 100 steps.
SIMULATED = """
import os, subprocess, time
from pathlib import Path
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

HERE = Path(__file__).parent

def simulate():
    until = time.process_time() + 3
    while time.process_time() < until:
        pass
    (HERE / "process").write_text(str(os.getpid()))
    (HERE / "worked").touch()
    time.sleep(600)

class Forgotten(CartPoleEnv):
    '''The first one double-forks a simulator, and nobody ends that.'''
    taken = 0

    def __init__(self):
        super().__init__()
        if not (HERE / "begun").exists():
            (HERE / "begun").touch()
            middle = os.fork()
            if middle == 0:
                if os.fork() == 0:
                    simulate()
                os._exit(0)
            os.waitpid(middle, 0)
            while not (HERE / "worked").exists():
                time.sleep(0.05)

    def step(self, action):
        Forgotten.taken += 1
        if Forgotten.taken > 200 and os.environ.get("FAULT"):
            raise RuntimeError("the simulator does not answer")
        return super().step(action)

class Closed(CartPoleEnv):
    '''Each one has a simulator, which it ends itself.'''
    def __init__(self):
        super().__init__()
        self.simulator = subprocess.Popen(["sleep", "600"])
        with (HERE / "processes").open("a") as file:
            file.write(f"{self.simulator.pid}\\n")

    def close(self):
        self.simulator.kill()
        self.simulator.wait()

gymnasium.register("Forgotten-v0", Forgotten, max_episode_steps=100)
gymnasium.register("Closed-v0", Closed, max_episode_steps=100)
"""


def trained(tmp_path: Path, workload: dict[str, Any], **variables: str) -> RecordData:
    """Train in an environment of the module above, and return the record."""
    (tmp_path / "simulated.py").write_text(SIMULATED)
    study = dqn_study()
    study["workload"] |= workload
    plan = planned(tmp_path / "p", study)
    done = run_task(plan, JOB, PYTHONPATH=f"{plan / 'worker.zip'}:{tmp_path}", **variables)
    data = only_record(plan)
    assert data.footer is not None, done.stderr
    return data


def outlived(data: RecordData) -> list[str]:
    return [text for text in data.events if "outlived" in text]


@pytest.mark.parametrize(("fault", "outcome"), [("", "completed"), ("yes", "failed")])
def test_a_forgotten_simulator_is_counted_ended_and_noted(tmp_path: Path, fault: str, outcome: str) -> None:
    data = trained(tmp_path, {"environment": "simulated:Forgotten-v0"}, FAULT=fault)
    assert data.footer is not None
    assert data.footer["outcome"] == outcome, data.footer["reason"]
    assert data.footer["own_cpu_seconds"] > 2.95
    assert outlived(data) == [f"1 process outlived the workload and had to be ended ({PYTHON})"]
    assert not psutil.pid_exists(int((tmp_path / "process").read_text()))


@pytest.mark.parametrize(
    ("stepping", "workers"), [("sync", "cores"), ("processes", "cores"), ("pipes", "environments")]
)
def test_environments_are_closed_and_hpcrl_s_own_processes_are_not_noted(
    tmp_path: Path, stepping: str, workers: str
) -> None:
    ppo = {
        "total_steps": 300, "hidden": [8], "evaluation_interval": 100, "evaluation_episodes": 2, "environments": 3,
        "rollout_steps": 10, "minibatch_size": 30, "epochs": 2, "stepping": stepping, "workers": workers,
    }  # fmt: skip
    workload = {"algorithm": "ppo", "environment": "simulated:Closed-v0", "hyperparameters": ppo}
    data = trained(tmp_path, workload)
    assert data.footer is not None
    assert data.footer["outcome"] == "completed", data.footer["reason"]
    assert outlived(data) == []
    simulators = [int(line) for line in (tmp_path / "processes").read_text().split()]
    assert len(simulators) >= 5  # of two evaluations and three environments
    assert not [pid for pid in simulators if psutil.pid_exists(pid)]
