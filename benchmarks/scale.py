"""``python -m benchmarks.scale [CELLS]``: what each verb takes of a large plan, on a real private Slurm.

CPU seconds are the whole process's, with its children (squeue, sacct, sbatch); memory is the largest process's.
"""

from __future__ import annotations

import compileall
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ruamel.yaml import YAML

import hpcrl
from hpcrl.formats.attempts import ATTEMPTS, COMPLETED, Start, end_attempt, take_attempt
from hpcrl.formats.plan import cell_ids, read_plan
from hpcrl.private_slurm.virtual import VirtualSlurm
from hpcrl.spec.library import Library


def main(cells: int = 100_000) -> None:
    compileall.compile_dir(Path(hpcrl.__file__).parent, quiet=1)  # as an installation does
    directory = Path(tempfile.mkdtemp(prefix="hc-", dir="/tmp"))
    directory.chmod(0o755)
    virtual = VirtualSlurm(directory / "s")
    virtual.up(Library().cluster("sol"))
    try:
        _measure(directory, virtual, cells)
        _fence(directory / "fence")
    finally:
        virtual.down()
        subprocess.run(["rm", "-rf", str(directory)], check=True)


def _measure(directory: Path, virtual: VirtualSlurm, cells: int) -> None:
    study = {
        "name": "large", "title": str(directory), "workload": {"command": ["true"]}, "axes": {"variant": ["a"]}, "seeds": cells,
        "chain": "parallel", "resources": {"memory": "50M", "time": "00:10:00"}, "max_parallel": 1,
    }  # fmt: skip
    with (directory / "study.yaml").open("w") as file:
        YAML(typ="safe").dump(study, file)
    plan = directory / "plan"
    print(f"| {cells:,} cells | CPU s | wall s | MiB | sbatch calls |\n|---|---|---|---|---|", flush=True)

    def row(what: str, *arguments: object) -> None:
        before = _calls(plan)
        cpu, wall, memory = run(virtual, *arguments)
        print(f"| {what} | {cpu:.2f} | {wall:.2f} | {memory:.0f} | {_calls(plan) - before} |", flush=True)

    row("plan", "plan", "--cluster", "sol", "--account", "lab", "--study", directory / "study.yaml", "-o", plan)
    partition = read_plan(plan).cell_jobs()[0].partition
    virtual.command("scontrol", "update", f"PartitionName={partition}", "State=DOWN")
    row("submit, all", "submit", plan)
    row("status, all wait", "status", plan)
    row("status --json, all wait", "status", plan, "--json")
    row("submit, nothing to do", "submit", plan)
    row("cancel", "cancel", plan)
    ids = cell_ids(plan, read_plan(plan))
    starts = [Start(cell, "1", 0, f"1_{number}", "m") for number, cell in enumerate(ids)]
    for start in starts:
        take_attempt(plan, start, {})
        end_attempt(plan, start, COMPLETED)
    row("status, all completed", "status", plan)
    row("status --json, all completed", "status", plan, "--json")
    for start in starts[1::2]:
        (plan / ATTEMPTS / f"{start.name}.{COMPLETED}").unlink()
        end_attempt(plan, start, "failed")
    row("status, every second failed", "status", plan)
    row("status --json, every second failed", "status", plan, "--json")
    row(f"submit, {cells // 2:,} scattered failures", "submit", plan)
    row("status after it", "status", plan)
    row("cancel", "cancel", plan)


def _calls(plan: Path) -> int:
    folder = plan / "submissions"
    return len(list(folder.iterdir())) if folder.exists() else 0


def run(virtual: VirtualSlurm, *arguments: object) -> tuple[float, float, float]:
    """Run hpcrl; return CPU seconds, wall seconds and the largest resident memory in MiB."""
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        words = [sys.executable, "-m", "hpcrl", *map(str, arguments)]
        os.execve(sys.executable, words, virtual.environment())
    _, code, used = os.wait4(pid, 0)
    if code:
        print(f"  exit status {os.waitstatus_to_exitcode(code)}: {arguments[0]}", file=sys.stderr)
    return used.ru_utime + used.ru_stime, time.monotonic() - began, used.ru_maxrss / 1024


def _fence(directory: Path, attempts: int = 20_000) -> None:
    """What taking an attempt and marking its end cost a cell, in a directory that holds as many others."""
    (directory / ATTEMPTS).mkdir(parents=True)
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.monotonic()
    for number in range(attempts):
        start = Start(f"{number:012x}", "1", 0, "1_1", "m")
        take_attempt(directory, start, {"node": "n1", "token": "t", "time": 1.0})
        end_attempt(directory, start, "completed")
    wall = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(f"the fence: {1e3 * cpu / attempts:.2f} ms CPU, {1e3 * wall / attempts:.2f} ms wall for each attempt")


if __name__ == "__main__":
    main(*(int(each) for each in sys.argv[1:2]))
