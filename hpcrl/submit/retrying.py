"""Which failed cells go out again, and with how much time and memory: the study's `retry`, within the site's limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcrl.errors import count
from hpcrl.formats.plan import Job
from hpcrl.submit.judging import FAILED, LOST, TaskStatus

# Where a study says nothing. `failed` cells have a fault of their own, which another attempt does not mend.
DEFAULT: Mapping[str, Mapping[str, Any]] = {
    "timeout": {"time": 2.0, "at_most": 2},
    "oom": {"memory": 1.5, "at_most": 3},
    "node_fail": {"at_most": 3, "exclude_node": True},
    "preempted": {"at_most": 3},
    "failed": {"at_most": 0},
}
_CAUSES = {
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "oom",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "PREEMPTED": "preempted",
    FAILED: "failed",
}


@dataclass(frozen=True)
class Ask:
    """What the attempts of one submission ask for; None: what the plan says."""

    cause: str = "first"
    time: int | None = None
    memory: int | None = None
    exclude: tuple[str, ...] = ()


def next_ask(
    job: Job, status: TaskStatus, before: int, rules: Mapping[str, Mapping[str, Any]], memory_is_asked_for: bool = True
) -> Ask | str:
    """Return what a failed cell asks for next, or why it is not tried again.

    Args:
        before: how many attempts were granted for the same cause already.
        memory_is_asked_for: whether the job's script says --mem; some sites give memory with cores.
    """
    if status.state == LOST:
        return Ask("lost", *_requests(status))
    cause = cause_of(status.state)
    if cause not in DEFAULT:
        return f"{status.state.lower()}: `--retry` does not try such cells again"
    rule = (rules or DEFAULT).get(cause, {"at_most": 0})
    most = int(rule.get("at_most", 1))
    if most == 0:
        return f"{cause}: the study's `retry` does not try such cells again"
    if before >= most:
        return f"{cause}: all {count(most, 'retry', 'retries')} of the study are used up"
    time, memory, exclude = _requests(status)
    if factor := rule.get("time"):
        asked = time or int(job.resources["time"])
        limit = job.max_time // job.cells_per_task if job.max_time else None
        time = _grown(asked, float(factor), limit)
        if time is None:
            return f"{cause}: it had {asked} s already, the most that partition and QOS allow"
    if rule.get("memory") and not memory_is_asked_for:
        return f"{cause}: memory comes with cores on this cluster: plan with more `memory`"
    if factor := rule.get("memory"):
        asked = memory or int(job.resources["memory"])
        memory = _grown(asked, float(factor), job.max_memory)
        if memory is None:
            return f"{cause}: it had {asked} MiB already, the most that a node has"
    if rule.get("exclude_node") and status.slurm and status.slurm.nodes and "None" not in status.slurm.nodes:
        exclude = tuple(dict.fromkeys([*exclude, status.slurm.nodes]))
    return Ask(cause, time, memory, exclude)


def cause_of(state: str) -> str:
    """Return the study's word for how an attempt ended."""
    return _CAUSES.get(state, state.lower())


def _requests(status: TaskStatus) -> tuple[int | None, int | None, tuple[str, ...]]:
    made = status.submission
    return (made.time, made.memory, made.exclude) if made else (None, None, ())


def _grown(asked: int, factor: float, limit: int | None) -> int | None:
    wanted = math.ceil(asked * factor)
    if limit is not None and wanted > limit:
        return limit if limit > asked else None
    return wanted
