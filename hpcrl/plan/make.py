"""Make a plan: expand, place, pack, render. The same inputs give the same bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hpcrl
from hpcrl.errors import UsageError
from hpcrl.formats.plan import CELLS, LOGS, MANIFEST, WORKER, Cell, Environment, Job, Plan, label
from hpcrl.formats.worker import worker_zip
from hpcrl.plan.cost import cost
from hpcrl.plan.directory import PlanFiles
from hpcrl.plan.environments import FlavourName, render_environment
from hpcrl.plan.expand import LIMITS, cell_ids
from hpcrl.plan.limits import longest, most_memory
from hpcrl.plan.machine import with_this_machine
from hpcrl.plan.pack import Group, arrays, as_data, pack, throttle
from hpcrl.plan.placement import NoPlace, place
from hpcrl.plan.requests import Options, Request, request
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.library import Library
from hpcrl.spec.rendering import Renderer
from hpcrl.spec.study import Pin, Resources, Study

_STAGE_RESOURCES = {
    "environments": Resources.model_validate({"cpus": 4, "memory": "8G", "time": "02:00:00"}),
    "collect": Resources.model_validate({"memory": "4G", "time": "01:00:00"}),
    "report": Resources.model_validate({"memory": "4G", "time": "00:30:00"}),
    "feed": Resources.model_validate({"memory": "2G", "time": "00:30:00"}),
    "notify": Resources.model_validate({"memory": "2G", "time": "00:10:00"}),
}
# Stages that a plan can do without: where they have no place, somebody at a terminal does their work.
_SPARE = ("feed", "notify")


@dataclass(frozen=True)
class UserChoices:
    """What is the user's own: account, e-mail, where environments go, chain, phases, whether a retired site will do."""

    account: str | None = None
    email: str | None = None
    environments_root: str | None = None
    chain: str | None = None
    precise_phases: bool = False
    allow_retired: bool = False


def make_plan(library: Library, cluster: str, study_name: str | None, choices: UserChoices) -> PlanFiles:
    """Plan a study on a cluster, in memory.

    Raises:
        SpecError: a profile, study, environment or template has a fault.
        UsageError: the cluster is retired, or the study cannot be planned on it at all.
    """
    profile = _profile(library, cluster, choices.allow_retired)
    study = library.study(study_name or profile.default_study)
    if choices.chain:
        study = study.model_copy(update={"chain": choices.chain})
    if choices.precise_phases:
        study = study.model_copy(update={"precise_phases": True})
    renderer = Renderer(library)
    environments: dict[tuple[str, FlavourName, bool], Environment] = {}

    def environment_key(name: str, flavour: FlavourName, horovod: bool) -> str:
        if (which := (name, flavour, horovod)) not in environments:
            environments[which] = render_environment(renderer, profile, library.environment(name), flavour, horovod)
        return environments[which].key

    groups, unplaced = pack(profile, study, environment_key)
    jobs, cells, scripts = _write_jobs(profile, study, choices, renderer, groups)
    _check_ids(study, cells)
    files: dict[str, str | bytes] = {**scripts, CELLS: "".join(cell.to_line() for cell in cells), WORKER: worker_zip()}
    for environment in environments.values():
        files[f"environments/{environment.key}.yaml"] = environment.conda
        files[f"environments/{environment.key}.txt"] = environment.requirements
    cell_jobs = [job for job in jobs if job.stage == "cells"]
    settings = study.model_dump(mode="json", exclude_none=True)
    plan = Plan(
        id=_digest({**files, "study": json.dumps(settings, sort_keys=True)}),
        hpcrl=hpcrl.__version__,
        study={name: value for name, value in settings.items() if name != "workload"},
        cluster=_cluster_facts(profile, choices),
        workload=settings["workload"],
        chain=study.chain,
        jobs=jobs,
        environments=sorted(environments.values(), key=lambda each: each.key),
        unplaced=unplaced,
        totals={
            "cells": len(cells),
            "jobs": len(cell_jobs),
            "unplaced": sum(each.cells for each in unplaced),
            "core_hours": round(sum(job.core_hours for job in cell_jobs), 4),
            "gpu_hours": round(sum(job.gpu_hours for job in cell_jobs), 4),
            "billed": round(sum(job.billed for job in cell_jobs), 4),
            "billing_unit": profile.billing.unit if profile.billing else None,
        },
        generation=1,
        cells_file=CELLS,
        worker=WORKER,
        limits={"submitted": profile.scheduler.max_submitted, "queued": {}},
        reused={},
    )
    return PlanFiles(plan, {**files, MANIFEST: plan.to_text()})


def _profile(library: Library, cluster: str, allow_retired: bool) -> ClusterProfile:
    profile = library.cluster(cluster)
    if profile.status == "retired" and not allow_retired:
        instead = f"; its successor is {profile.successor}" if profile.successor else ""
        raise UsageError(
            f"cluster {profile.name} was switched off on {profile.retired_on}{instead} (--allow-retired plans for it all the same)"
        )
    return with_this_machine(profile) if profile.scheduler.kind == "local" else profile


def _digest(files: Mapping[str, str | bytes]) -> str:
    content = hashlib.sha256()
    for name, data in sorted(files.items()):
        content.update(name.encode() + b"\0" + (data.encode() if isinstance(data, str) else data) + b"\0")
    return content.hexdigest()[:16]


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


def _write_jobs(
    profile: ClusterProfile, study: Study, choices: UserChoices, renderer: Renderer, groups: list[Group]
) -> tuple[list[Job], list[Cell], dict[str, str]]:
    """Return the jobs in the order of the chain, the cells in the order of the jobs, and the scripts by name."""
    workload = study.workload.model_dump(mode="json", exclude_none=True)
    staged = study.chain == "staged" and bool(groups)
    jobs: list[Job] = []
    cells: list[Cell] = []
    scripts: dict[str, str] = {}
    names: dict[str, int] = {}

    def add(job: Job, asked: Request) -> None:
        jobs.append(job)
        scripts[job.script] = _script(renderer, profile, study, choices, job, asked, WORKER)

    def add_stage(stage: str) -> None:
        if made := _stage_job(stage, profile, study, choices):
            add(*made)

    if staged:
        add_stage("environments")
    for group in groups:
        asked = request(profile, group.placement, group.resources, choices.account, choices.email)
        resources = as_data(group.resources)
        cell_id = cell_ids(workload, resources, group.environment, study.axes)
        stem = f"{study.name}-{group.environment.rpartition('-')[0]}"
        for points in arrays(profile, group):
            names[stem] = names.get(stem, 0) + 1
            add(_cell_job(profile, study, group, f"{stem}-{names[stem]}", len(cells), len(points)), asked)
            for point in points:
                cells.append(Cell(cell_id(point.config), point.config, resources, group.environment))
    if groups and profile.scheduler.kind == "slurm":
        add_stage("feed")
    if staged:
        add_stage("collect")
        add_stage("report")
    if groups:
        add_stage("notify")
    return jobs, cells, scripts


def _check_ids(study: Study, cells: Sequence[Cell]) -> None:
    """Make sure that every cell has an id of its own.

    Raises:
        UsageError: two cells compute the same.
    """
    if len({cell.id for cell in cells}) == len(cells):
        return
    first: dict[str, Cell] = {}
    for cell in cells:
        if (other := first.setdefault(cell.id, cell)) is cell:
            continue
        differing = " and ".join(name for name in LIMITS if cell.resources[name] != other.resources[name])
        if differing:
            raise UsageError(
                f"study {study.name}: two cells ({label(cell.config)}) differ in {differing} only, which is no part of what a cell "
                f"computes: make {differing} an axis of its own, or take one of the two cells out"
            )
        raise UsageError(
            f"study {study.name}: a cell ({label(cell.config)}) stands in it twice: take it out of `include`, or out of the axes"
        )


def _cell_job(profile: ClusterProfile, study: Study, group: Group, name: str, first: int, count: int) -> Job:
    one = cost(profile, group.placement, group.resources)
    return Job(
        name=name,
        stage="cells",
        script=f"scripts/{name}.sbatch",
        first=first,
        count=count,
        array=True,
        environment=group.environment,
        resources=as_data(group.resources),
        partition=group.placement.partition,
        qos=group.placement.qos,
        node_type=group.placement.node_type,
        throttle=throttle(profile, study, group),
        core_hours=round(one.core_hours * count, 6),
        gpu_hours=round(one.gpu_hours * count, 6),
        billed=round(one.billed * count, 6),
        max_time=longest(profile, group.placement),
        max_memory=most_memory(profile, group.placement, group.resources),
    )


def _stage_job(stage: str, profile: ClusterProfile, study: Study, choices: UserChoices) -> tuple[Job, Request] | None:
    resources = _STAGE_RESOURCES[stage]
    pin = Pin()
    if stage == "environments" and profile.environments.build_partition:
        pin = Pin(partition=profile.environments.build_partition, qos=profile.environments.build_qos)
    if profile.scheduler.kind == "local":
        resources = resources.model_copy(update={"cpus": 1, "memory": 1})
    spot = place(profile, resources, pin)
    if isinstance(spot, NoPlace):
        if stage in _SPARE:
            return None
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
        resources=as_data(resources),
        partition=spot.partition,
        qos=spot.qos,
        node_type=spot.node_type,
        throttle=None,
        core_hours=0.0,
        gpu_hours=0.0,
        billed=0.0,
        max_time=longest(profile, spot),
        max_memory=most_memory(profile, spot, resources),
    )
    return job, request(profile, spot, resources, choices.account, choices.email)


def _script(
    renderer: Renderer,
    profile: ClusterProfile,
    study: Study,
    choices: UserChoices,
    job: Job,
    asked: Request,
    worker: str,
) -> str:
    directives: Options = [("job-name", job.name), *asked.directives]
    if job.array:
        at_once = f"%{job.throttle}" if job.throttle and job.throttle < job.tasks else ""
        directives.append(("array", f"0-{job.tasks - 1}{at_once}"))
        if signal := study.workload.warning():
            directives.append(("signal", f"{signal}@{_signal_lead(profile, job)}"))
        directives.append(("requeue", True))
    directives.append(("output", f"{LOGS}/%x-%A_%a.out" if job.array else f"{LOGS}/%x-%j.out"))
    directives.append(("open-mode", "append"))
    given = {name for name, _ in directives}
    directives += [(name, value) for name, value in profile.script.directives.items() if name not in given]
    template = f"sbatch/{job.stage}.sbatch.j2"
    text = renderer.render(
        template,
        {
            "cluster": profile,
            "job": job,
            "directives": directives,
            "launch": asked.launch,
            "ranks": job.resources.get("tasks", 1),
            "worker": worker,
            "environments_root": choices.environments_root or profile.environments.root,
        },
    )
    for command in profile.environments.forbidden:
        if command in text:
            raise UsageError(f"{template}: would run `{command}`, which {profile.title} asks not to do")
    return text


def _signal_lead(profile: ClusterProfile, job: Job) -> int:
    """Ask for the warning signal early enough for a checkpoint, but never in the first half of a short job."""
    return max(10, min(profile.scheduler.signal_lead, int(job.resources["time"]) // 4))
