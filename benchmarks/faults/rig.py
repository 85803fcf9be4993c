"""One private Slurm, plans of quick cells that write down each execution, and what came of them."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML

from hpcrl.formats.plan import read_plan
from hpcrl.private_slurm.virtual import VirtualSlurm
from hpcrl.slurm.client import WAITING, Completed, Slurm, run_command
from hpcrl.slurm.reasons import LAUNCH_FAILED, word_of
from hpcrl.spec.library import Library
from hpcrl.submit.status import PlanStatus, plan_status

PATIENCE = 300.0  # of one command, and for the end of all cells


@dataclass
class Count:
    """What went wrong in some trials."""

    trials: int = 0
    lost: int = 0
    twice: int = 0
    wrong: int = 0
    hangs: int = 0
    tracebacks: int = 0
    notes: list[str] = field(default_factory=list)

    def faults(self) -> int:
        return self.lost + self.twice + self.wrong + self.hangs + self.tracebacks

    def add(self, other: Count) -> None:
        self.trials += other.trials
        self.lost += other.lost
        self.twice += other.twice
        self.wrong += other.wrong
        self.hangs += other.hangs
        self.tracebacks += other.tracebacks
        self.notes += other.notes


@dataclass(frozen=True)
class Done:
    """What a call of hpcrl left."""

    code: int
    out: str
    err: str


class Rig:
    """The Slurm, its faults, and a directory for plans."""

    def __init__(self, directory: Path, cells: int) -> None:
        self.directory = directory
        self.cells = cells
        directory.chmod(0o755)  # munged wants that
        self.virtual = VirtualSlurm(directory / "s")
        self.virtual.up(Library().cluster("sol"))
        self.faults = self.virtual.faults()
        self.slurm = Slurm(self._run)
        self.environments = directory / "environments"
        (directory / "bin").mkdir()
        (directory / "bin/activate").write_text('export PATH="$1/bin:$PATH"\n')  # in conda's place
        self.count = Count()
        self._plans = 0

    def close(self) -> None:
        self.virtual.down()
        shutil.rmtree(self.directory, ignore_errors=True)

    def variables(self, **more: str) -> dict[str, str]:
        own = {
            "PATH": f"{self.directory}/bin:{self.faults.path}",
            "HPCRL_ENVIRONMENTS": str(self.environments),
            "HPCRL_ACCOUNT": "lab",
        }
        return self.virtual.environment() | own | more

    def _run(self, arguments: Sequence[str], cwd: Path | None, timeout: float) -> Completed:
        words = [f"{name}={value}" for name, value in self.variables().items() if os.environ.get(name) != value]
        return run_command(["env", *words, *arguments], cwd, timeout)

    def start(self, *arguments: object, **variables: str) -> subprocess.Popen[str]:
        """Start hpcrl in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "hpcrl", *map(str, arguments)],
            env=self.variables(**variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def end(self, process: subprocess.Popen[str]) -> Done:
        """Wait for hpcrl; count a hang, and a traceback where it printed one."""
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            self.count.hangs += 1
            self.note(f"{' '.join(process.args[3:5])} hangs: {err[-300:]}")  # type: ignore[index,arg-type]
        # A signal before hpcrl's first line, while Python itself starts, is beyond it.
        if ("Traceback" in err and "/hpcrl/" in err) or "a fault in hpcrl" in err:
            self.count.tracebacks += 1
            self.note(err[-600:])
        return Done(process.returncode, out, err)

    def hpcrl(self, *arguments: object, **variables: str) -> Done:
        return self.end(self.start(*arguments, **variables))

    def note(self, text: str) -> None:
        self.count.notes.append(text)

    def plan(self, seconds: float = 0.0, cells: int | None = None, gated: bool = False, **study: object) -> Path:
        """Plan cells that each append their id to ``ran``; where they are gated, they then wait for :meth:`let_go`."""
        self._plans += 1
        place = self.directory / f"t{self._plans}"
        place.mkdir()
        wait = f"while [ ! -e {place}/go ]; do sleep 0.2; done" if gated else f"sleep {seconds}"
        command = ["sh", "-c", f"echo {{cell}} >> {place}/ran; {wait}"]
        content = {
            "name": "faults", "title": f"Trial {self._plans} {place}", "workload": {"command": command}, "axes": {"variant": ["a"]},
            "seeds": cells or self.cells, "chain": "parallel", "resources": {"memory": "256M", "time": "00:10:00"},
            "calibration_seconds": 0, "idle_seconds": 0, **study,
        }  # fmt: skip
        with (place / "study.yaml").open("w") as file:
            YAML(typ="safe").dump(content, file)
        plan = place / "plan"
        done = self.hpcrl("plan", "--cluster", "sol", "--study", place / "study.yaml", "-o", plan)
        assert done.code == 0, done.err
        for environment in read_plan(plan).environments:
            self._environment(environment.key)
        return plan

    def let_go(self, plan: Path) -> None:
        (plan.parent / "go").touch()

    def _environment(self, key: str) -> None:
        """Let the interpreter of this benchmark be the cells' environment."""
        place = self.environments / key
        if place.exists():
            return
        (place / "bin").mkdir(parents=True)
        (place / "bin/python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (place / "bin/python").chmod(0o755)
        (place / "hpcrl-environment.json").write_text(json.dumps({"key": key}))

    def ids(self, plan: Path) -> list[str]:
        return [json.loads(line)["id"] for line in (plan / "cells.jsonl").read_text().splitlines()]

    def ran(self, plan: Path) -> Counter[str]:
        path = plan.parent / "ran"
        return Counter(path.read_text().split()) if path.exists() else Counter()

    def states(self, plan: Path) -> dict[str, str]:
        done = self.hpcrl("status", plan, "--json")
        if not done.out:
            return {}
        return {each["id"]: each["state"] for each in json.loads(done.out)["cells"]}

    def finish(self, plan: Path, expected: dict[str, str] | None = None, submit: bool = True, again: int = 4) -> None:
        """Do as a user would: submit what is missing, wait; then hold what was told against what happened.

        Args:
            expected: cell -> the state that it must have at the end, and then have run no more than its count says;
                others must be COMPLETED, after exactly one execution.
        """
        self.faults.clear()
        for _ in range(again if submit else 0):
            done = self.hpcrl("submit", plan)
            self.wait(plan)
            if done.code == 0:
                break
        self.judge(plan, expected or {})

    def wait(self, plan: Path, seconds: float = PATIENCE) -> PlanStatus:
        """Wait until no cell waits or runs. It asks inside this process.

        What Slurm holds since its start failed on a node is released, as its user would do.
        """
        deadline = time.monotonic() + seconds
        while True:
            self.resume_nodes()
            status = plan_status(plan, self.slurm)
            if not status.live():
                return status
            for key in _held(status):
                self.virtual.command("scontrol", "release", key)
            if time.monotonic() > deadline:
                self.count.hangs += 1
                self.note(f"still not ended: {status.counts()}")
                return status
            time.sleep(0.5)

    def cancel_task(self, plan: Path, cell: str) -> None:
        """Cancel a cell's task with Slurm's own command, as a user may behind hpcrl's back."""
        key = plan_status(plan, self.slurm).survey.units[cell].key
        done = self.virtual.command("scancel", str(key))
        assert done.returncode == 0, done.stderr

    def empty(self) -> None:
        """Cancel what is left, and wait for its end: a job that is COMPLETING is in the queue of the next trial."""
        self.virtual.command("scancel", "--me")
        self.until_queue_is_empty()

    def until_queue_is_empty(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while self.virtual.command("squeue", "-h").stdout.strip() and time.monotonic() < deadline:
            time.sleep(0.5)

    def resume_nodes(self) -> None:
        """Do as an administrator would: Slurm drains a node that is told to start a job twice ("Duplicate jobid")."""
        for name, state in self.virtual.nodes():
            if state.startswith("drain"):
                self.virtual.command("scontrol", "update", f"NodeName={name}", "State=RESUME")

    def judge(self, plan: Path, expected: dict[str, str]) -> None:
        ran, states = self.ran(plan), self.states(plan)
        for cell in self.ids(plan):
            wanted = expected.get(cell, "COMPLETED")
            if wanted == "COMPLETED" and ran[cell] == 0:
                self.count.lost += 1
                self.note(f"{plan}: {cell} never ran; told: {states.get(cell)}")
            if ran[cell] > 1:
                self.count.twice += 1
                self.note(f"{plan}: {cell} ran {ran[cell]} times")
            if states.get(cell) != wanted:
                self.count.wrong += 1
                self.note(f"{plan}: {cell} is told {states.get(cell)}, and is {wanted}")

    def honest(self, plan: Path) -> None:
        """Hold a status in the middle of things against the truth: who is COMPLETED has run, who waits is queued."""
        queued = self.virtual.command("squeue", "-h", "-o", "%j").stdout
        states, ran = self.states(plan), self.ran(plan)
        for cell, state in states.items():
            if state == "COMPLETED" and not ran[cell]:
                self.count.wrong += 1
                self.note(f"{plan}: {cell} is told COMPLETED and has not run")
            if state == "PENDING" and "faults-" not in queued:
                self.count.wrong += 1
                self.note(f"{plan}: {cell} is told PENDING and Slurm has no such job")


def _held(status: PlanStatus) -> list[str]:
    """Return the tasks that Slurm holds, since their start failed on a node."""
    return [
        each.key
        for each in status.statuses
        if each.key and each.slurm and each.state in WAITING and word_of(each.slurm.reason or "") == LAUNCH_FAILED
    ]


def pause(most: float) -> None:
    time.sleep(random.uniform(0, most))


def killed(process: subprocess.Popen[str], group: bool = True, number: signal.Signals = signal.SIGKILL) -> None:
    """End hpcrl: with what it started, or alone."""
    try:
        (os.killpg if group else os.kill)(process.pid, number)
    except ProcessLookupError:
        return
