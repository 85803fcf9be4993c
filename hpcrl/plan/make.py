"""Make a plan: expand, place, pack, render. The same inputs give the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hpcrl
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.plan import (
    CELLS,
    LOGS,
    MANIFEST,
    RECORDS,
    STAGES,
    WORKER,
    Cell,
    Environment,
    Job,
    Plan,
    Unplaced,
)
from hpcrl.plan.expand import Point, cell_id, expand
from hpcrl.plan.machine import with_this_machine
from hpcrl.plan.placement import NoPlace, Placement, place
from hpcrl.plan.requests import Request, request
from hpcrl.plan.worker import worker_zip
from hpcrl.spec.billing import evaluate
from hpcrl.spec.cluster import ClusterProfile, gpu_name
from hpcrl.spec.environment import SoftwareEnvironment
from hpcrl.spec.library import Library
from hpcrl.spec.rendering import Renderer
from hpcrl.spec.study import Pin, Resources, Study

DEFAULT_ENVIRONMENT = "numpy"
MAX_ARRAY = 100_000
_STAGE_RESOURCES = {
    "environments": Resources.model_validate({"cpus": 4, "memory": "8G", "time": "02:00:00"}),
    "collect": Resources.model_validate({"memory": "4G", "time": "01:00:00"}),
    "report": Resources.model_validate({"memory": "4G", "time": "00:30:00"}),
}


@dataclass(frozen=True)
class UserChoices:
    """What is the user's own: account, e-mail, where environments go, the chain, and whether a retired site will do."""

    account: str | None = None
    email: str | None = None
    environments_root: str | None = None
    chain: str | None = None
    allow_retired: bool = False


@dataclass(frozen=True)
class PlanFiles:
    """A plan and the text of each of its files."""

    plan: Plan
    files: Mapping[str, str | bytes]


@dataclass
class _Group:
    """Cells that differ in nothing that Slurm sees."""

    environment: str
    placement: Placement
    resources: Resources
    points: list[Point]


def make_plan(library: Library, cluster: str, study_name: str | None, choices: UserChoices) -> PlanFiles:
    """Plan a study on a cluster, in memory.

    Raises:
        SpecError: a profile, study, environment or template has a fault.
        UsageError: the cluster is retired, or the study cannot be planned on it at all.
    """
    profile = library.cluster(cluster)
    if profile.scheduler.kind == "local":
        profile = with_this_machine(profile)
    if profile.status == "retired" and not choices.allow_retired:
        instead = f"; its successor is {profile.successor}" if profile.successor else ""
        raise UsageError(
            f"cluster {profile.name} was switched off on {profile.retired_on}{instead} (--allow-retired plans for it all the same)"
        )
    study = library.study(study_name or profile.default_study)
    if choices.chain:
        study = study.model_copy(update={"chain": choices.chain})
    renderer = Renderer(library)
    environments: dict[tuple[str, str, bool], Environment] = {}
    specs: dict[str, SoftwareEnvironment] = {}
    pin = study.placement.get(profile.name, Pin())
    groups: dict[tuple[Any, ...], _Group] = {}
    unplaced: dict[tuple[Any, ...], Unplaced] = {}
    found: dict[Resources, Placement | NoPlace] = {}
    for point in expand(study):
        if point.resources not in found:
            found[point.resources] = place(profile, point.resources, pin)
        spot = found[point.resources]
        if isinstance(spot, NoPlace):
            shown = {key: value for key, value in point.config.items() if key != "seed"}
            same = (json.dumps(shown, sort_keys=True), point.resources)
            so_far = unplaced.get(same) or Unplaced(0, shown, _asked(point.resources), spot.reason, spot.nearest)
            unplaced[same] = replace(so_far, cells=so_far.cells + 1)
            continue
        name = study.environment or point.config.get("framework") or DEFAULT_ENVIRONMENT
        which = (
            str(name),
            "cuda" if point.resources.gpus else "cpu",
            point.resources.parallelism == "horovod",
        )
        if which not in environments:
            spec = specs.setdefault(which[0], library.environment(which[0]))
            environments[which] = render_environment(renderer, profile, spec, which[1], which[2])
        key = environments[which].key
        group = groups.setdefault((key, point.resources), _Group(key, spot, point.resources, []))
        group.points.append(point)

    workload = study.workload.model_dump(mode="json", exclude_none=True)
    digest = hashlib.sha256(json.dumps(workload, sort_keys=True).encode()).hexdigest()
    lines: list[str] = []
    files: dict[str, str | bytes] = {}
    jobs: list[Job] = []
    placed = [each for _, each in sorted(groups.items(), key=lambda item: _order(item[1]))]
    stages = [stage for stage in STAGES if stage != "cells"] if study.chain == "staged" and placed else []
    if stages:
        jobs.append(_stage_job("environments", profile, study, choices, renderer, files))
    names: dict[str, int] = {}
    for group in placed:
        # Each task of an array counts as a job in the queue.
        queued = profile.qos[group.placement.qos].max_queued if group.placement.qos else None
        size = min(profile.scheduler.max_array_size, queued or MAX_ARRAY)
        for start in range(0, len(group.points), size):
            chunk = group.points[start : start + size]
            stem = f"{study.name}-{group.environment.rpartition('-')[0]}"
            names[stem] = names.get(stem, 0) + 1
            job = _cell_job(profile, study, group, f"{stem}-{names[stem]}", len(lines), len(chunk))
            asked = request(profile, group.placement, group.resources, choices.account, choices.email)
            files[job.script] = _script(renderer, "cells", profile, choices, job, asked)
            jobs.append(job)
            resources = _asked(group.resources)
            lines += [
                Cell(
                    cell_id(digest, each.config, resources, group.environment),
                    each.config,
                    resources,
                    group.environment,
                ).to_line()
                for each in chunk
            ]
    if stages:
        jobs += [_stage_job(stage, profile, study, choices, renderer, files) for stage in ("collect", "report")]
    files[CELLS] = "".join(lines)
    for environment in environments.values():
        files[f"environments/{environment.key}.yaml"] = environment.conda
        files[f"environments/{environment.key}.txt"] = environment.requirements
    files[WORKER] = worker_zip()
    cell_jobs = [job for job in jobs if job.stage == "cells"]
    content = hashlib.sha256()
    for name in sorted(files):
        data = files[name]
        content.update(name.encode() + b"\0" + (data.encode() if isinstance(data, str) else data) + b"\0")
    plan = Plan(
        id=content.hexdigest()[:16],
        hpcrl=hpcrl.__version__,
        study=study.model_dump(mode="json", exclude_none=True, exclude={"workload"}),
        cluster=_cluster_facts(profile, choices),
        workload=workload,
        chain=study.chain,
        jobs=jobs,
        environments=sorted(environments.values(), key=lambda each: each.key),
        unplaced=list(unplaced.values()),
        totals={
            "cells": len(lines),
            "jobs": len(cell_jobs),
            "unplaced": sum(each.cells for each in unplaced.values()),
            "core_hours": round(sum(job.core_hours for job in cell_jobs), 4),
            "gpu_hours": round(sum(job.gpu_hours for job in cell_jobs), 4),
            "billed": round(sum(job.billed for job in cell_jobs), 4),
            "billing_unit": profile.billing.unit if profile.billing else None,
        },
    )
    return PlanFiles(plan, {**files, MANIFEST: plan.to_text()})


def _order(group: _Group) -> tuple[Any, ...]:
    asked = group.resources
    return (asked.gpus, asked.tasks, asked.cpus, asked.nodes, group.environment, asked.time, asked.memory)


def _asked(resources: Resources) -> dict[str, Any]:
    return resources.model_dump(mode="json", exclude_none=True)


def render_environment(
    renderer: Renderer, profile: ClusterProfile, spec: SoftwareEnvironment, flavour: str, horovod: bool
) -> Environment:
    """Render conda YAML and requirements; the key holds the hash of both, so that equal environments are built once.

    Raises:
        UsageError: the environment has no such flavour.
    """
    if flavour not in spec.flavours:
        raise UsageError(f"environment {spec.name}: has no {flavour} flavour; there are: {', '.join(spec.flavours)}")
    chosen = spec.flavours[flavour]
    values = {
        "environment": spec,
        "flavour": flavour,
        "horovod": horovod,
        "pins": spec.pins(flavour, horovod),
        "find_links": chosen.find_links,
        "channels": profile.environments.channels,
    }
    conda = renderer.render("environments/conda.yaml.j2", values)
    requirements = renderer.render("environments/requirements.txt.j2", values)
    digest = hashlib.sha256(f"{conda}\0{requirements}".encode()).hexdigest()[:10]
    key = "-".join([spec.name, flavour, *(["horovod"] if horovod else []), digest])
    return Environment(
        key,
        spec.name,
        flavour,
        horovod,
        spec.python,
        list(spec.imports),
        list(chosen.find_links),
        conda,
        requirements,
    )


def _cluster_facts(profile: ClusterProfile, choices: UserChoices) -> dict[str, Any]:
    """Keep what the later stages need of the profile; they never read it."""
    return {
        "name": profile.name,
        "title": profile.title,
        "status": profile.status,
        "scheduler": profile.scheduler.model_dump(mode="json", exclude_none=True),
        "environments": profile.environments.model_dump(mode="json", exclude_none=True)
        | ({"root": choices.environments_root} if choices.environments_root else {}),
        "cores": {name: node.usable_cores for name, node in profile.node_types.items()},
    }


def _cell_job(profile: ClusterProfile, study: Study, group: _Group, name: str, first: int, count: int) -> Job:
    asked, spot = group.resources, group.placement
    node = profile.node_types[spot.node_type]
    hours = asked.time / 3600
    tasks = asked.tasks or asked.nodes
    cores: float = spot.cpus_per_task * tasks
    if asked.gpus and node.gpus and node.gpus.cores_each:
        cores = max(cores, node.gpus.cores_each * asked.gpus)
    if profile.allocation_unit == "node" or spot.exclusive:
        cores = node.usable_cores * asked.nodes
    billed = 0.0
    if profile.billing:
        values = dict.fromkeys(profile.billing_names(), 0.0) | {
            "cores": cores,
            "memory_gib": asked.memory * tasks / 1024,
            "nodes": float(asked.nodes),
            "gpus": float(asked.gpus),
            "hours": hours,
            "charge_factor": profile.qos[spot.qos].charge_factor if spot.qos else 1.0,
        }
        if node.gpus:
            values[gpu_name(node.gpus.type)] = float(asked.gpus)
        billed = evaluate(profile.billing.expression, values)
    limits = [study.max_parallel, profile.scheduler.array_throttle]
    qos = profile.qos[spot.qos] if spot.qos else None
    limits.append(qos.max_running if qos else None)
    throttle = min((limit for limit in limits if limit), default=None)
    return Job(
        name=name,
        stage="cells",
        script=f"scripts/{name}.sbatch",
        first=first,
        count=count,
        array=True,
        environment=group.environment,
        resources=_asked(asked),
        partition=spot.partition,
        qos=spot.qos,
        node_type=spot.node_type,
        throttle=throttle,
        core_hours=round(cores * hours * count, 6),
        gpu_hours=round(asked.gpus * hours * count, 6),
        billed=round(billed * count, 6),
    )


def _stage_job(
    stage: str,
    profile: ClusterProfile,
    study: Study,
    choices: UserChoices,
    renderer: Renderer,
    files: dict[str, str | bytes],
) -> Job:
    resources = _STAGE_RESOURCES[stage]
    pin = Pin()
    if stage == "environments" and profile.environments.build_partition:
        pin = Pin(partition=profile.environments.build_partition, qos=profile.environments.build_qos)
    if profile.scheduler.kind == "local":
        resources = resources.model_copy(update={"cpus": 1, "memory": 1})
    spot = place(profile, resources, pin)
    if isinstance(spot, NoPlace):
        raise UsageError(
            f"cluster {profile.name}: the stage `{stage}` fits nowhere: {spot.reason} (--chain parallel plans without it)"
        )
    job = Job(
        name=f"{study.name}-{stage}",
        stage=stage,
        script=f"scripts/{study.name}-{stage}.sbatch",
        first=0,
        count=1,
        array=False,
        environment=None,
        resources=_asked(resources),
        partition=spot.partition,
        qos=spot.qos,
        node_type=spot.node_type,
        throttle=None,
        core_hours=0.0,
        gpu_hours=0.0,
        billed=0.0,
    )
    asked = request(profile, spot, resources, choices.account, choices.email)
    files[job.script] = _script(renderer, stage, profile, choices, job, asked)
    return job


def _script(
    renderer: Renderer, template: str, profile: ClusterProfile, choices: UserChoices, job: Job, asked: Request
) -> str:
    directives: list[tuple[str, str | int | bool]] = [("job-name", job.name), *asked.directives]
    if job.array:
        throttle = f"%{job.throttle}" if job.throttle and job.throttle < job.count else ""
        directives.append(("array", f"0-{job.count - 1}{throttle}"))
        directives.append(("signal", f"USR2@{_signal_lead(profile, job)}"))
        directives.append(("requeue", True))
    directives.append(("output", f"{LOGS}/%x-%A_%a.out" if job.array else f"{LOGS}/%x-%j.out"))
    directives.append(("open-mode", "append"))
    given = {name for name, _ in directives}
    directives += [(name, value) for name, value in profile.script.directives.items() if name not in given]
    text = renderer.render(
        f"sbatch/{template}.sbatch.j2",
        {
            "cluster": profile,
            "job": job,
            "directives": directives,
            "launch": asked.launch,
            "ranks": job.resources.get("tasks", 1),
            "environments_root": choices.environments_root or profile.environments.root,
        },
    )
    for command in profile.environments.forbidden:
        if command in text:
            raise UsageError(
                f"sbatch/{template}.sbatch.j2: would run `{command}`, which {profile.title} asks not to do"
            )
    return text


def _signal_lead(profile: ClusterProfile, job: Job) -> int:
    """Ask for the warning signal early enough for a checkpoint, but never in the first half of a short job."""
    return max(10, min(profile.scheduler.signal_lead, int(job.resources["time"]) // 4))


def write_plan(files: PlanFiles, directory: Path) -> bool:
    """Write the plan directory as a whole, or not at all; return False where the same plan stands there already.

    Raises:
        UsageError: another plan, or something else, stands there.
        HpcrlError: it cannot be written.
    """
    if directory.exists() and any(directory.iterdir()):
        manifest = directory / MANIFEST
        if not manifest.is_file():
            raise UsageError(f"{directory}: exists and is not a plan directory: choose another with -o")
        if manifest.read_text(encoding="utf-8") == files.plan.to_text():
            return False
        raise UsageError(
            f"{directory}: holds another plan (`hpcrl plan diff` compares): choose another directory with -o"
        )
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    except OSError as error:
        raise HpcrlError(f"{directory}: cannot be made: {error.strerror}") from None
    try:
        temporary.chmod(0o755)
        for name, content in files.files.items():
            path = temporary / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        for name in (LOGS, RECORDS):
            (temporary / name).mkdir()
        if directory.exists():
            directory.rmdir()
        os.replace(temporary, directory)  # noqa: PTH105
    except OSError as error:
        raise HpcrlError(f"{directory}: cannot be written: {error.strerror}; nothing was left half-written") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True
