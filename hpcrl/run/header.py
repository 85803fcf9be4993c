"""The header of a record: which attempt of which cell this is, on which machine, with which software and code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hpcrl.formats.plan import Cell, Job, Plan
from hpcrl.formats.record import FORMAT
from hpcrl.run.allocation import Allocation
from hpcrl.run.command import Places
from hpcrl.surroundings import describe, expanded, fault
from hpcrl.telemetry.provenance import code, hardware, numeric_variables, slurm_variables, software, software_in


def header_of(
    directory: Path,
    plan: Plan,
    job: Job,
    cell: Cell,
    allocation: Allocation,
    submission: str | None = None,
    profiler: str | None = None,
) -> dict[str, Any]:
    """Return the fields that are known before the cell begins.

    Args:
        submission: the token of the submission that granted the attempt; None for a start by hand.
    """
    try:
        worker = hashlib.sha256((directory / plan.worker).read_bytes()).hexdigest()[:16]
    except OSError:
        worker = None
    return {
        "format": FORMAT,
        "hpcrl": plan.hpcrl,
        "worker": worker,
        "plan": plan.id,
        "study": plan.study.name,
        "cluster": plan.cluster.name,
        "job": job.name,
        "partition": job.partition,
        "qos": job.qos,
        "cell": cell.id,
        "config": cell.config,
        "resources": cell.resources,
        "environment": cell.environment,
        "workload": plan.workload_of(cell.config),
        "attempt": allocation.attempt,
        "restarts": allocation.restarts,
        "job_id": allocation.key,
        "submission": submission,
        "node": allocation.node,
        "rank": allocation.rank,
        "ranks": allocation.ranks,
        "hardware": hardware(),
        "software": _software(plan),
        "variables": numeric_variables(),
        "profile": profiler,
        "slurm": slurm_variables(),
        "code": _code(directory, plan),
    }


def _software(plan: Plan) -> dict[str, str]:
    """Return the versions in the environment of the workload. Those in a command's modules or container are not known."""
    how = plan.study.surroundings
    if how is None or not plan.runs_command:
        return software()
    return software_in(expanded(how.path)) if how.path and not fault(how) else {}


def _code(directory: Path, plan: Plan) -> dict[str, Any]:
    """Return the commit of the directory where a command starts (for a copy: of its original), and an environment that is not hpcrl's."""
    workload, how = plan.workload, plan.study.surroundings
    standing = {"surroundings": json.dumps(describe(how), sort_keys=True)} if how else {}
    if not plan.runs_command:
        return {**code(), **standing}
    place = Places.of(directory, workload, "").code
    of_copy = {name: value for name, value in workload.get("code", {}).items() if name != "modules"}
    return {
        **code(place if place.is_dir() else None),
        **of_copy,
        "workdir": workload.get("workdir_of") or str(place),
        **standing,
    }
