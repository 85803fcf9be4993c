"""sbatch, squeue, sacct, scontrol and scancel: each called here and nowhere else, with a runner passed in."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcrl.errors import HpcrlError


@dataclass(frozen=True)
class Completed:
    """What a command left: exit code, standard output and error."""

    code: int
    out: str
    err: str


Runner = Callable[[Sequence[str], Path | None, float], Completed]


def run_command(arguments: Sequence[str], cwd: Path | None = None, timeout: float = 120.0) -> Completed:
    """Run one command without a shell.

    Raises:
        HpcrlError: it is not installed, or does not answer in time.
    """
    try:
        done = subprocess.run(list(arguments), cwd=cwd, timeout=timeout, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise HpcrlError(
            f"{arguments[0]}: no such command: is Slurm installed here? (--executor local needs none)"
        ) from None
    except subprocess.TimeoutExpired:
        raise HpcrlError(
            f"{arguments[0]}: gave no answer within {timeout:.0f} s: the queue may be full, or the controller down"
        ) from None
    return Completed(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class JobState:
    """One array task (or job) as Slurm sees it; `key` is ``JOBID`` or ``JOBID_TASK``."""

    key: str
    state: str
    exit_code: str | None = None
    elapsed: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Usage:
    """What Slurm accounted for one array task: CPU seconds, most memory of a task of it (bytes), energy (J), nodes."""

    cpu_seconds: float | None = None
    memory_peak: float | None = None
    energy: float | None = None
    nodes: str | None = None


_JOB_ID = re.compile(r"(\d+)(?:_(?:(\d+)|\[([^\]]+)\]))?$")
RUNNING = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "SUSPENDED", "STOPPED"})
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})


class Slurm:
    """The scheduler's commands."""

    def __init__(self, runner: Runner = run_command) -> None:
        self._run = runner

    def _checked(self, *arguments: str, cwd: Path | None = None) -> str:
        done = self._run(arguments, cwd, 120.0)
        if done.code != 0:
            detail = " ".join((done.err or done.out).split()) or f"exit code {done.code}"
            raise HpcrlError(f"{arguments[0]} failed: {detail}")
        return done.out

    def test_only(self, script: Path, cwd: Path) -> str | None:
        """Ask the scheduler whether it would take a script; return its objection, or None. Nothing is submitted."""
        done = self._run(["sbatch", "--test-only", str(script)], cwd, 60.0)
        return None if done.code == 0 else " ".join(done.err.replace("sbatch: error:", "").split())

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Return the state of each array task of some jobs: accounting first, the live queue over it. Two calls in all."""
        if not job_ids:
            return {}
        states: dict[str, JobState] = {}
        wanted = ",".join(dict.fromkeys(job_ids))
        accounted = self._run(
            ["sacct", "-X", "-n", "-P", "-o", "JobID,State,ExitCode,ElapsedRaw,Partition", "-j", wanted],
            None,
            120.0,
        )
        for line in accounted.out.splitlines() if accounted.code == 0 else ():
            fields = line.split("|")
            if len(fields) < 5 or not fields[4]:
                continue  # a job that accounting has not fully heard of yet
            for key in _keys(fields[0]):
                elapsed = float(fields[3]) if fields[3].isdigit() else None
                states[key] = JobState(key, fields[1].split()[0], fields[2], elapsed)
        queued = self._run(["squeue", "-h", "-r", "-t", "all", "-o", "%i|%T|%r", "-j", wanted], None, 120.0)
        if queued.code != 0 and accounted.code != 0:
            raise HpcrlError(f"neither squeue nor sacct answers: {' '.join((queued.err or accounted.err).split())}")
        for line in queued.out.splitlines() if queued.code == 0 else ():
            key, state, reason = [*line.split("|"), "", ""][:3]
            known = states.get(key)
            if state in RUNNING | WAITING or known is None:
                states[key] = JobState(
                    key, state, known.exit_code if known else None, known.elapsed if known else None, reason
                )
        return states

    def usage(self, job_ids: Sequence[str]) -> dict[str, Usage]:
        """Return what each array task of some jobs used, as far as accounting has heard of it. One call in all."""
        if not job_ids:
            return {}
        wanted = ",".join(dict.fromkeys(job_ids))
        fields = "JobID,Partition,TotalCPU,MaxRSS,ConsumedEnergyRaw,NodeList"
        done = self._run(["sacct", "-n", "-P", "--noconvert", "-o", fields, "-j", wanted], None, 120.0)
        found: dict[str, Usage] = {}
        for line in done.out.splitlines() if done.code == 0 else ():
            job, partition, cpu, memory, energy, nodes = (line.split("|") + [""] * 6)[:6]
            key, _, step = job.partition(".")
            if not step and partition:  # the job itself; without a partition accounting has not fully heard of it
                found[key] = Usage(_cpu_seconds(cpu), None, float(energy) if energy.isdigit() else None, nodes or None)
            elif step and key in found and memory:
                peak = max(found[key].memory_peak or 0.0, float(memory.rstrip("K")) * (1024 if "K" in memory else 1))
                found[key] = replace(found[key], memory_peak=peak)
        return found

    def find_by_comment(self, comment: str) -> str | None:
        """Return the id of the job with a comment, queued or accounted; None where Slurm has none."""
        queued = self._checked("squeue", "-h", "-t", "all", "-o", "%A|%F|%k")
        for line in queued.splitlines():
            job_id, array_id, text = line.split("|", 2)
            if text == comment:
                return array_id if array_id.isdigit() else job_id
        done = self._run(["sacct", "-X", "-n", "-P", "-o", "JobID,Comment", "-S", "now-7days"], None, 120.0)
        for line in done.out.splitlines() if done.code == 0 else ():
            job_id, _, text = line.partition("|")
            if text == comment:
                return job_id.partition("_")[0]
        return None

    def cancel(self, keys: Sequence[str]) -> None:
        if keys:
            self._checked("scancel", *keys)

    def host_names(self, nodes: str) -> list[str]:
        """Expand a node list such as ``c[001-003]``."""
        return self._checked("scontrol", "show", "hostnames", nodes).split()

    def requeue(self, key: str) -> None:
        self._checked("scontrol", "requeue", key)


def _keys(text: str) -> list[str]:
    match = _JOB_ID.match(text)
    if not match:
        return []
    job, task, several = match.groups()
    if task is not None:
        return [f"{job}_{task}"]
    if several is None:
        return [job]
    keys = []
    for part in several.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            keys += [f"{job}_{index}" for index in range(int(first), int(last or first) + 1)]
    return keys


def _cpu_seconds(text: str) -> float | None:
    """Read ``[days-][hours:]minutes:seconds[.fraction]``."""
    days, _, clock = text.rpartition("-")
    try:
        parts = [float(part) for part in clock.split(":")]
        seconds = sum(part * 60.0**power for power, part in enumerate(reversed(parts)))
        return seconds + 86_400.0 * int(days or 0)
    except ValueError:
        return None


def array_key(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the key of the job that this process runs in, None outside of Slurm."""
    if "SLURM_ARRAY_JOB_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment.get("SLURM_JOB_ID")


def tasks_per_node(text: str) -> list[int]:
    """Read Slurm's ``2(x3),1``: three nodes of two tasks, one of one."""
    counts = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return counts
