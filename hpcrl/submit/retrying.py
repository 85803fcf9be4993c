"""Which failed cells are submitted again, and with how much time and memory: the study's `retry`, within the site's limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpcrl.errors import count
from hpcrl.formats.plan import Job
from hpcrl.schedulers.states import FAILED, LOST, TaskStatus
from hpcrl.schedulers.wanted import Ask

# For studies without `retry`. `failed` cells have an error of their own, which another attempt does not correct.
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


def next_ask(
    job: Job, status: TaskStatus, before: int, rules: Mapping[str, Mapping[str, Any]], memory_is_asked_for: bool = True
) -> Ask | str:
    """Return the next request of a failed cell, or why it is not retried.

    Args:
        before: number of attempts already granted for the same cause.
        memory_is_asked_for: whether the job's script says --mem; some sites give memory with cores.
    """
    if status.state == LOST:
        return Ask("lost", *_requests(status))
    cause = cause_of(status.state)
    if cause not in DEFAULT:
        return f"{status.state.lower()}: `--retry` does not retry such cells"
    rule = (rules or DEFAULT).get(cause, {"at_most": 0})
    most = int(rule.get("at_most", 1))
    if most == 0:
        return f"{cause}: the study's `retry` does not retry such cells"
    if before >= most:
        return f"{cause}: all {count(most, 'retry', 'retries')} of the study are used up"
    time, memory, exclude = _requests(status)
    if factor := rule.get("time"):
        asked = time or job.asked.time
        limit = job.max_time // job.cells_per_task if job.max_time else None
        time = _grown(asked, float(factor), limit)
        if time is None:
            return f"{cause}: it already had {asked} s, the maximum of partition and QOS"
    if rule.get("memory") and not memory_is_asked_for:
        return f"{cause}: memory comes with cores on this cluster: plan with more `memory`"
    if factor := rule.get("memory"):
        asked = memory or job.asked.memory
        memory = _grown(asked, float(factor), job.max_memory)
        if memory is None:
            return f"{cause}: it already had {asked} MiB, the maximum of a node"
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
