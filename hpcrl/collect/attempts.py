"""Make one row per attempt of a cell, from the summaries of records and the scheduler's answers. No outcome is dropped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hpcrl.collect.accounting import Accounted, AttemptKey
from hpcrl.errors import UsageError
from hpcrl.formats.facts import RETURNS, StudyFacts, settings
from hpcrl.formats.outcomes import FAILURES, RankEnd, cause, place_of
from hpcrl.formats.plan import Cell, Plan, every_cell
from hpcrl.formats.runs import host_of
from hpcrl.profilers import KEY as PROFILE
from hpcrl.schedulers.states import LOST, OF_ALL_CELLS, UNKNOWN
from hpcrl.searches import ID as SEARCH_ID
from hpcrl.slurm.client import RUNNING, WAITING

# The outcome of an attempt when Slurm ended its job before the attempt had completed.
_OUTCOME = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "oom",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "PREEMPTED": "preempted",
}
_SAYS = {UNKNOWN: "did not answer", LOST: "has lost it"}
_AT_A_SIGNAL = ("preempted", "timeout")
_SUCCESSES = ("completed", "pruned")
# Results of a calibration; a higher value means a faster machine.
CALIBRATION = ("matrix", "memory", "python", "environment")
EARLY_SECONDS = 2.0  # a record that began so many seconds before its submission was written with another clock

# Values of the first rank's footer that are valid for all ranks.
_FOOTER = (
    "training_time", "evaluation_time", "setup_time", "compile_time", "goal_wall_time", "phase_time", "precise_phases", "final_score", "goal_step",
    "goal_time", "compiled", "collective", "messages", "resumed_step", "updates",
)  # fmt: skip


def _average(values: list[float]) -> float:
    return sum(values) / len(values)


def _farthest(values: list[float]) -> float:
    return max(values, key=abs)


# Columns made from all records of an attempt: the function, and the value that it takes.
_FOLDED: dict[str, tuple[Callable[[list[float]], float], str]] = {
    "cpu_seconds": (sum, "cpu_seconds"),
    "machine_cpu_percent": (_average, "machine_cpu_percent"),
    "machine_memory_percent": (_average, "machine_memory_percent"),
    "idle_cpu_percent": (_average, "idle_cpu_percent"),
    "idle_memory_percent": (_average, "idle_memory_percent"),
    "rss_peak": (max, "rss"),
    "pss_peak": (max, "pss"),
    "memory_peak": (max, "memory_peak"),
    "cpu_energy": (sum, "cpu_energy"),
    "cgroup_cpu_seconds": (sum, "cgroup_cpu"),
    "cgroup_memory_peak": (max, "cgroup_memory_peak"),
    "sampler_cpu_seconds": (sum, "sampler_cpu"),
    "sampler_memory": (max, "sampler_memory"),
    "clock_offset": (_farthest, "clock_offset"),
    "gpu_percent": (_average, "gpu_percent"),
    "gpu_memory_peak": (max, "gpu_memory"),
    "energy": (sum, "gpu_energy"),
    "framework_gpu_memory_peak": (max, "framework_gpu_memory_peak"),
}


@dataclass(frozen=True)
class PlannedCell(Cell):
    """A cell with the settings that its study has for all cells, as JSON."""

    settings: str


def planned_cells(directory: Path, plan: Plan) -> Iterator[PlannedCell]:
    """Read the cells of all generations of a plan, as :func:`hpcrl.formats.plan.every_cell` does."""
    texts: dict[int, str] = {}
    for manifest, cell in every_cell(directory, plan):
        if manifest.generation not in texts:
            try:
                texts[manifest.generation] = json.dumps(settings(manifest.workload), sort_keys=True)
            except (TypeError, AttributeError):
                raise UsageError(
                    f"{directory}: its workload contains values of a wrong type: leave this plan out"
                ) from None
        yield PlannedCell(cell.id, cell.config, cell.resources, cell.environment, texts[manifest.generation])


# What cells ask for, as text -> what the site counts and charges for an hour of it.
Charges = dict[str, dict[str, Any]]


def attempt_rows(
    plan: Plan,
    cells: Mapping[str, PlannedCell],
    records: Iterable[Mapping[str, Any]],
    accounted: Mapping[AttemptKey, Accounted],
    newest: Mapping[AttemptKey, int],
) -> list[dict[str, Any]]:
    """Return one row for each attempt of some records, all records of an attempt among them.

    Workload and resources of a cell come from the plan, not from its records.

    Args:
        newest: the newest restart of each attempt of these cells (:func:`newest_restarts`).
    """
    by_attempt: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        by_attempt.setdefault(attempt_of(record), []).append(record)
    rows = []
    charges = _charges(plan)
    for (name, attempt), group in by_attempt.items():
        base, restart = _split(attempt)
        ordered = sorted(group, key=lambda record: record["header"]["rank"])
        last = restart == newest[name, base]
        rows.append(_row_of_records(plan, cells[name], ordered, charges, accounted.get((name, base)), last))
    return rows


def attempt_of(record: Mapping[str, Any]) -> tuple[str, str]:
    """Return the cell and the attempt of a record."""
    return record["header"]["cell"], record["header"]["attempt"]


def newest_restarts(attempts: Iterable[tuple[str, str]]) -> dict[AttemptKey, int]:
    """Return the newest restart of each attempt, from pairs of a cell and an attempt's name."""
    newest: dict[AttemptKey, int] = {}
    for name, attempt in attempts:
        base, restart = _split(attempt)
        newest[name, base] = max(restart, newest.get((name, base), 0))
    return newest


def rows_without_records(
    plan: Plan,
    cells: Mapping[str, PlannedCell],
    accounted: Mapping[AttemptKey, Accounted],
    newest: Mapping[AttemptKey, int],
) -> list[dict[str, Any]]:
    """Return one row for each attempt that was submitted, no longer waits, and left no record."""
    rows = []
    charges = _charges(plan)
    recorded = {(name, known.ledger, known.attempt) for name, base in newest if (known := accounted.get((name, base)))}
    for (name, base), known in accounted.items():
        # The fence of a directory lets one submission run an attempt: if another one has its record, this one did nothing.
        if (
            (name, base) not in newest
            and not known.elsewhere
            and not known.waits
            and (name, known.ledger, known.attempt) not in recorded
        ):
            rows.append(_row_without_record(plan, cells[name], base, charges, known))
    return rows


def age_of(row: Mapping[str, Any], accounted: Mapping[AttemptKey, Accounted]) -> tuple[str, float, float, int, float]:
    """Return the key that sorts rows by cell, and those of a cell by submission, oldest first.

    An attempt without a record has no start time. If no ledger has the submission that a record names, the attempt is as old
    as its start. Starts by hand come last.
    """
    base, restart = _split(row["attempt"])
    started = row["started"] or 0.0
    if known := accounted.get((row["cell"], base)):
        return row["cell"], known.since, known.number, restart, started
    return row["cell"], started if row.get("submission") else math.inf, started, restart, started


def _split(attempt: str) -> tuple[str, int]:
    """Split ``JOBID_TASK-RESTART``; a local attempt has no restart."""
    base, _, restart = attempt.rpartition("-")
    if base and restart.isdecimal() and not attempt.startswith(("local-", "byhand-")):
        return base, int(restart)
    return attempt, 0


def _row_of_records(
    plan: Plan, cell: PlannedCell, group: list[Mapping[str, Any]], charges: Charges, found: Accounted | None, last: bool
) -> dict[str, Any]:
    first = group[0]
    head, footer = first["header"], first["footer"] or {}
    asked = cell.asked
    ends, missing = _ends(group), asked.tasks - len({record["header"]["rank"] for record in group})
    own = cause(ends, len(group))
    told = found if last and not (found and found.shared and _tells_all(own, missing)) else None
    outcome, reason = _outcome(own, ends, missing, told, last)
    wall = max(record["wall_time"] for record in group)
    if plan.study.search:  # the cell drew hyperparameters when it started
        drawn = head.get("drawn") or {}
        known = {
            name: drawn[name] for name in plan.study.search.space if isinstance(drawn.get(name), str | int | float)
        }
        if head.get("search"):
            known[SEARCH_ID] = head["search"]
        cell = replace(cell, config=cell.config | known)
    row = _identity(plan, cell, head["attempt"], charges)
    row |= {
        "outcome": outcome,
        "reason": reason,
        "partition": head.get("partition"),
        "qos": head.get("qos"),
        "job_id": head.get("job_id"),
        "submission": head.get("submission"),
        "records": len(group),
        "hosts": _hosts(group),
        "started": head["started"],
        "tensorboard": head.get("tensorboard"),
        "profile": head.get("profile"),
        "wall_time": wall,
        **{name: footer.get(name) for name in _FOOTER},
        "steps": footer.get("steps") or first["steps_seen"],
        "episodes": footer.get("episodes") or first["episodes_seen"],
        "best_score": footer.get("best_score") if footer.get("best_score") is not None else first["best_seen"],
        **_reported_score(plan.study, first),
        **_over_records(group),
        "versions": first["software"],
        "variables": first["variables"],
        "hardware": first["hardware"],
        **_code(first["code"]),
        **_calibration(group),
    }
    if wall and (used := row.get("cpu_seconds")):
        row["cpu_utilisation"] = used / (wall * asked.cores)
    if found:
        row |= _requested(found)
    if told:
        row |= _accounting(told)
    row["notes"] = "; ".join(_notes(group, found)) or None
    return row


def _reported_score(study: StudyFacts, record: Mapping[str, Any]) -> dict[str, float]:
    """Return the score of a command: the last and the best value that it reported under the name of the study's `score`.

    Without one it is the return.
    """
    reported = record.get("reported") or {}
    names = [study.score] if study.score else RETURNS
    for name in names:
        if name in reported:
            last, least, largest = reported[name]
            return {"final_score": last, "best_score": least if study.better == "lower" else largest}
    return {}


def _over_records(group: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values that are computed from all records of an attempt."""
    parts = [{**(record["footer"] or {}), **record["header"], **record} for record in group]
    folded = {}
    for column, (fold, name) in _FOLDED.items():
        if values := [value for part in parts if (value := part.get(name)) is not None]:
            folded[column] = fold(values)
    return folded | _whole_usage(parts, folded)


def _whole_usage(parts: list[dict[str, Any]], sampled: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the ranks' kernel counters, which replace those of the samples; None for one known to be too small."""
    usage: dict[str, Any] = {}
    own = [part.get("own_cpu_seconds") for part in parts]
    unreaped = any(part.get("unreaped") for part in parts)
    if all(seconds is not None for seconds in own):
        usage["cpu_seconds"] = sum(own)
    elif unreaped:
        usage["cpu_seconds"] = None
    switches = [part.get("own_context_switches") for part in parts]
    if all(number is not None for number in switches):
        usage["context_switches"] = sum(switches)
    peaks = [sampled.get("memory_peak"), *(part.get("largest_process") for part in parts)]
    usage["memory_peak"] = max((float(peak) for peak in peaks if peak is not None), default=None)
    return usage


@lru_cache  # records of one plan mostly have the same values
def _facts(text: str) -> dict[str, Any]:
    return json.loads(text) or {}


def _code(text: str) -> dict[str, Any]:
    return {name: _facts(text).get(name) for name in ("git_commit", "git_dirty", "modules", "workdir", "surroundings")}


def _calibration(group: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the calibration, that of the slowest node if there are several."""
    known = [facts for facts in (_facts(record["calibration"]) for record in group) if facts]
    names = [name for name in CALIBRATION if any(name in facts for facts in known)]
    return {f"calibration_{name}": min(facts[name] for facts in known if name in facts) for name in names}


def _hosts(group: list[Mapping[str, Any]]) -> int | None:
    """Return on how many hosts the ranks ran; None if a record does not name its host."""
    names = {host_of(_facts(record["hardware"])) for record in group}
    return None if None in names else len(names)


def _notes(group: list[Mapping[str, Any]], found: Accounted | None) -> list[str]:
    texts = [text for record in group for text in record["notes"]]
    ranks = [record["header"]["rank"] for record in group]
    texts += [f"rank {rank} left more than one record" for rank in sorted(set(ranks)) if ranks.count(rank) > 1]
    started = min(record["header"]["started"] for record in group)
    if found and started < found.at - EARLY_SECONDS:
        late = found.at - started
        texts.append(
            f"{group[0]['header']['node']}: its clock is {late:.0f} s behind the clock of the submitting machine"
        )
    return list(dict.fromkeys(texts))


def _row_without_record(
    plan: Plan, cell: PlannedCell, attempt: str, charges: Charges, found: Accounted
) -> dict[str, Any]:
    goes_on = found.state in RUNNING or found.state == UNKNOWN
    outcome = _OUTCOME.get(found.state, "running" if goes_on else "failed" if found.state == "FAILED" else "lost")
    reason = f"it left no record; the scheduler {_SAYS.get(found.state) or f'says {found.state}'}"
    reason += f", exit code {found.exit_code}" if found.exit_code else ""
    if found.unbegun and found.has_ended and found.state not in OF_ALL_CELLS:
        outcome, reason = "lost", f"its array task ended before it began; the scheduler says {found.state} of the task"
    row = _identity(plan, cell, attempt, charges)
    row |= {
        "outcome": outcome,
        "reason": reason,
        "partition": found.partition,
        "qos": found.qos,
        "records": 0,
        "started": None,
    }
    return row | _requested(found) | _accounting(found)


def _requested(found: Accounted) -> dict[str, Any]:
    """Return the submission of an attempt, and its requests where they differ from the plan's: a retry asks for more."""
    asked = {"submission": found.token, "memory_mib": found.memory, "time_limit": found.time}
    return {name: value for name, value in asked.items() if value is not None}


def _identity(plan: Plan, cell: PlannedCell, attempt: str, charges: Charges) -> dict[str, Any]:
    config, resources = cell.config, cell.resources
    return {
        "plan": plan.id,
        "cell": cell.id,
        "attempt": attempt,
        "study": plan.study.name,
        "cluster": plan.cluster.name,
        "workload": plan.workload_of(config),
        "framework": config.get("framework"),
        "execution": config.get("execution"),
        "parallelism": resources.get("parallelism"),
        "overcommit": bool(resources.get("overcommit")),
        "seed": config.get("seed"),
        "profile": config.get(PROFILE),
        "config": json.dumps(config, sort_keys=True),
        "settings": cell.settings,
        "environment": cell.environment,
        "nodes": resources.get("nodes"),
        "tasks": resources.get("tasks"),
        "cpus": resources.get("cpus"),
        "gpus": resources.get("gpus"),
        "gpu_type": resources.get("gpu_type"),
        "memory_mib": resources.get("memory"),
        "time_limit": resources.get("time"),
        **charges.get(_asked(resources), {}),
    }


def _charges(plan: Plan) -> Charges:
    """Return what the site counts and charges for an hour of a cell, by what cells ask for."""
    charges: dict[str, dict[str, Any]] = {}
    unit = plan.totals.get("billing_unit")
    for job in plan.jobs:
        if job.stage != "cells":
            continue
        hours = job.count * job.asked.time / 3600
        rate = {"charge_rate": job.billed / hours, "charge_unit": unit} if unit else {}
        charges[_asked(job.resources)] = {
            "charged_cores": round(job.core_hours / hours, 3),
            **rate,
        }  # plans have six decimals
    return charges


def _asked(resources: Mapping[str, Any]) -> str:
    return json.dumps(resources, sort_keys=True)


def _accounting(found: Accounted) -> dict[str, Any]:
    return {
        "slurm_state": found.state,
        "slurm_exit_code": found.exit_code,
        "slurm_elapsed": found.elapsed,
        "job_id": found.key,
        "slurm_cpu_seconds": found.cpu_seconds,
        "slurm_memory_peak": found.memory_peak,
        "slurm_energy": found.energy,
        "slurm_nodes": found.nodes,
    }


def _tells_all(own: RankEnd | None, missing: int) -> bool:
    """Tell whether the records of an attempt say how it ended, so that the state of a task of several cells adds nothing.

    An attempt that was ended by a signal does not know who sent it.
    """
    return own is not None and (own.outcome in FAILURES or (own.outcome != "preempted" and missing <= 0))


def _outcome(
    own: RankEnd | None, ends: list[RankEnd], missing: int, told: Accounted | None, last: bool
) -> tuple[str, str | None]:
    """Decide the outcome of an attempt, and why it did not complete.

    If all ranks completed, it has. Else the state decides if Slurm ended the job, otherwise the worst that any rank recorded.

    Args:
        own: the end of the whole attempt, if the records say it. ends: of the ranks that have ended.
        missing: number of ranks without a record.
        told: what the scheduler says of this restart; None if nothing.
        last: whether it is the newest restart.
    """
    if told and told.state in _OUTCOME and not (own and own.outcome in _SUCCESSES and missing <= 0):
        return _OUTCOME[told.state], f"the scheduler says {told.state}"
    exit_code = f"; exit code {told.exit_code}" if told and told.exit_code else ""
    if told and told.state == "FAILED" and missing > 0 and not (own and own.outcome in FAILURES):
        return "failed", f"{missing} of its ranks left no record{exit_code}"
    if own:
        return own.outcome, own.reason
    if not last:
        return "preempted", "it was requeued"
    if told and told.state in RUNNING | WAITING:
        return "running", None
    if told and told.state == UNKNOWN:
        return "running", "the scheduler does not say whether it still runs"
    # The ranks without a footer waited for one that a signal ended, and were ended with it.
    if stopped := [end for end in ends if end.outcome in _AT_A_SIGNAL]:
        worst = min(stopped, key=lambda end: place_of(end.outcome))
        return worst.outcome, worst.reason
    if told and told.state == "FAILED":
        return "failed", f"it ended without a footer{exit_code}"
    return "lost", "it ended without a footer, and no scheduler says why"


def _ends(group: list[Mapping[str, Any]]) -> list[RankEnd]:
    """Return how the ranks ended that have, with the times of the first node's clock."""
    heads = [record["header"] for record in group]
    # Only the first rank of a node knows by how much the node's clock is ahead.
    ahead = {head["node"]: offset for head in heads if (offset := head.get("clock_offset"))}
    return [_rank_end(record, ahead.get(record["header"]["node"], 0.0)) for record in group if record["footer"]]


def _rank_end(record: Mapping[str, Any], ahead: float) -> RankEnd:
    head, footer = record["header"], record["footer"]
    time = head["started"] - ahead + record["wall_time"]
    return RankEnd(head["rank"], footer["outcome"], footer.get("reason"), bool(footer.get("killed_by")), time)
