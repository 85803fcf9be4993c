"""Make a plan: expand, place, pack, render. The same inputs give the same bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcrl import __version__
from hpcrl.catalogue.training import steps_compiled
from hpcrl.errors import UsageError
from hpcrl.formats.facts import read_cluster, read_study
from hpcrl.formats.plan import CELLS, MANIFEST, WORKER, Environment, Job, Plan, old_manifest
from hpcrl.formats.version import full_version
from hpcrl.formats.worker import worker_zip
from hpcrl.plan.before import Before, changes, check_same
from hpcrl.plan.cells import Batch, check_ids, identified
from hpcrl.plan.directory import PlanFiles
from hpcrl.plan.environments import (
    Environments,
    check_compiled,
    check_profilers,
    surroundings_notes,
    unchecked_of,
)
from hpcrl.plan.jobs import Made, UserChoices, write_jobs
from hpcrl.plan.limits import queue_limits
from hpcrl.plan.machine import with_this_machine
from hpcrl.plan.needs import drawing_notes, mpi_notes
from hpcrl.plan.notes import capability_notes, idle_notes, notes
from hpcrl.plan.pack import pack
from hpcrl.plan.workdir import check_readers, working_directory
from hpcrl.profilers import KEY as PROFILE
from hpcrl.searches import ROLE
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.library import Library, packaged
from hpcrl.spec.rendering import Renderer
from hpcrl.spec.search import directions_of
from hpcrl.spec.study import Study
from hpcrl.spec.surroundings import surroundings_of
from hpcrl.spec.training import training_notes
from hpcrl.surroundings import Surroundings

__all__ = ["UserChoices", "make_plan"]


def make_plan(
    library: Library,
    cluster: str,
    study_name: str | None,
    choices: UserChoices,
    before: Before | None = None,
    completed: Mapping[str, str] | None = None,
) -> PlanFiles:
    """Plan a study on a cluster, in memory.

    Args:
        before: the existing plan of the directory; the new plan is its next generation.
        completed: the cells to leave out, by id, each with the place where it is completed.

    Raises:
        SpecError: a profile, study, environment or template has a fault.
        UsageError: the cluster is retired, no plan of the study is possible on it, or `before` is another plan.
    """
    profile = _profile(library, cluster, choices.allow_retired)
    name = study_name or profile.default_study
    study = _chosen(library.study(name, choices.settings), choices)
    if before:
        search = {**study.search.identity(), "directions": directions_of(study)} if study.search else None
        check_same(before, study.name, profile.name, search)
    renderer = Renderer(library)
    environments = Environments(library, profile, renderer, surroundings_of(study.environment))
    groups, refusals = pack(profile, study, environments.key)
    unplaced = [refusal.unplaced for refusal in refusals]
    places = library.places_in_study(name, [refusal.at for refusal in refusals], choices.settings)
    every = identified(study, groups)
    check_ids(study, every)
    reused = _reused(every, completed or {})
    batches = [batch.without(reused) for batch in every] if reused else every
    batches = [batch for batch in batches if batch.ids]
    if reused and not batches:
        raise UsageError(
            f"study {study.name}: all its {len(reused)} cells are completed in {', '.join(sorted(set(reused.values())))}: "
            "leave out --reuse to run them again"
        )
    worker = worker_zip()
    worker_name = WORKER
    if before:
        kept = before.keeps(before.plan.worker, worker)
        worker_name = before.plan.worker if kept else f"worker-{before.next}.zip"
    home = environments.home(study.workload)
    made = write_jobs(profile, study, choices, renderer, batches, worker_name, before, home)
    used = environments.of({home, *(batch.environment for batch in batches)})
    profiler_notes = _check_software(study, batches, used, environments.surroundings)
    settings = study.model_dump(mode="json", exclude_none=True)
    workdir = working_directory(study.workload)
    settings["workload"] |= workdir.facts
    if study.search:
        settings["search"]["directions"] = directions_of(study)
    placed = [batch.placement for batch in batches]
    told = [
        *workdir.notes,
        *unchecked_of(used),
        *training_notes(study),
        *surroundings_notes(environments.surroundings),
        *profiler_notes,
        *notes(profile, placed),
        *idle_notes(profile, [(batch.placement, batch.resources) for batch in batches], study.workload.trains),
        *capability_notes(
            profile, [(batch.placement, batch.environment) for batch in batches], environments.capabilities
        ),
        *mpi_notes(profile, study.workload, (config for batch in batches for config in batch.configs)),
        *drawing_notes(profile, study.environment_ids(), study.workload.env),
        *([note] if (note := library.no_claims(study.paper)) else []),
    ]
    plan = Plan(
        id="",
        hpcrl=full_version(__version__),
        study=read_study({name: value for name, value in settings.items() if name != "workload"}),
        cluster=read_cluster(_cluster_facts(profile, choices)),
        workload=settings["workload"],
        chain=study.chain,
        jobs=made.jobs,
        environments=used,
        unplaced=unplaced,
        totals={
            **_totals([job for job in made.jobs if job.stage == "cells"]),
            "cells": sum(len(batch.ids) for batch in batches),
            "unplaced": sum(group.cells for group in unplaced),
            "reused": len(reused),
            "billing_unit": profile.billing.unit if profile.billing else None,
            "notes": told,
        },
        generation=1,
        cells_file=CELLS,
        worker=worker_name,
        limits=queue_limits(profile, [job.qos for job in made.jobs]),
        reused=reused,
    )
    files = {**made.scripts, **workdir.files, **_files_beside(library, study, plan), worker_name: worker}
    if before:
        ids = [cell for batch in batches for cell in batch.ids]
        extended = _next_generation(before, plan, made, files, ids)
        return replace(extended, executable=workdir.executable, unplaced_at=places)
    files[CELLS] = "".join(made.lines)
    plan = replace(
        plan, id=_digest({**files, "study": json.dumps(settings, sort_keys=True)}), digests=_digests(plan, files)
    )
    return PlanFiles(plan, {**files, MANIFEST: plan.to_text()}, executable=workdir.executable, unplaced_at=places)


def _check_software(
    study: Study, batches: Sequence[Batch], used: Sequence[Environment], surroundings: Surroundings | None
) -> list[str]:
    """Check that the environments have what reads metrics, steps compiled environments and profiles; return notes where that cannot be known."""
    check_readers(study.workload, used, surroundings)
    if study.workload.trains and isinstance(study.environment, str):
        given = study.workload.hyperparameters
        values = ((batch.environment, {**given, **config}) for batch in batches for config in batch.configs)
        check_compiled(
            (key for key, cell in values if steps_compiled(cell.get("stepping"), cell.get("execution"))), used
        )
    profiled = ((batch.environment, config.get(PROFILE)) for batch in batches for config in batch.configs)
    return check_profilers(((key, str(profiler)) for key, profiler in profiled if profiler), used, surroundings)


def _totals(jobs: Sequence[Job]) -> dict[str, Any]:
    """Add up what jobs of cells cost at most."""
    return {
        "jobs": len(jobs),
        "core_hours": round(sum(job.core_hours for job in jobs), 4),
        "gpu_hours": round(sum(job.gpu_hours for job in jobs), 4),
        "billed": round(sum(job.billed for job in jobs), 4),
    }


def _files_beside(library: Library, study: Study, plan: Plan) -> dict[str, str | bytes]:
    """Return the files of a plan's environments, and the user's own claims."""
    files: dict[str, str | bytes] = {}
    claims = library.claims_of(study.paper)
    if claims and study.paper and not library.find("jobs/claims", study.paper).resolve().is_relative_to(packaged()):
        # The stage `report` runs in the plan's directory, and finds them there.
        files[f"jobs/claims/{study.paper}.yaml"] = claims.as_text()
    for environment in plan.environments:
        files[f"environments/{environment.key}.yaml"] = environment.conda
        files[f"environments/{environment.key}.txt"] = environment.requirements
    return files


def _reused(batches: Sequence[Batch], completed: Mapping[str, str]) -> dict[str, str]:
    """Return the cells that need not run again. Those of a search do, because its journal belongs to its plan."""
    return {
        cell: completed[cell]
        for batch in batches
        for cell, config in zip(batch.ids, batch.configs, strict=True)
        if cell in completed and ROLE not in config
    }


def _next_generation(
    before: Before, plan: Plan, made: Made, files: dict[str, str | bytes], cells: list[str]
) -> PlanFiles:
    """Make a plan the next generation of the previous one, or return the previous one if nothing differs."""
    old = before.plan
    cells_file = old.cells_file if before.cells == made.lines else f"cells-{before.next}.jsonl"

    files[cells_file] = "".join(made.lines)

    def of(generation: int) -> Plan:
        jobs = [replace(job, cells_file=cells_file) for job in plan.jobs]
        new = replace(plan, id=old.id, generation=generation, cells_file=cells_file, jobs=jobs)
        return replace(new, digests=_digests(new, files))

    if (same := of(old.generation)).to_text() == before.manifest:
        return PlanFiles(same, files | {MANIFEST: before.manifest})
    new = of(before.next)
    files |= {old_manifest(old.generation): before.manifest, MANIFEST: new.to_text()}
    return PlanFiles(new, files, changes(before, new, cells))


def _chosen(study: Study, choices: UserChoices) -> Study:
    """Return the study with the user's choices."""
    update: dict[str, Any] = {}
    if choices.chain:
        update["chain"] = choices.chain
    if choices.precise_phases:
        update["precise_phases"] = True
    if notify := choices.notify or study.notify or choices.notify_by_default:
        update["notify"] = notify
    return study.model_copy(update=update)


def _profile(library: Library, cluster: str, allow_retired: bool) -> ClusterProfile:
    profile = library.cluster(cluster)
    if profile.status == "retired" and not allow_retired:
        instead = f"; its successor is {profile.successor}" if profile.successor else ""
        raise UsageError(
            f"cluster {profile.name} was switched off on {profile.retired_on}{instead}: plan for another cluster, or give --allow-retired"
        )
    return with_this_machine(profile) if profile.scheduler.here else profile


def _digests(plan: Plan, files: Mapping[str, str | bytes]) -> dict[str, str]:
    """Return the SHA-256 of the files that every cell needs: scripts, worker, cells."""
    names = [plan.cells_file, plan.worker, *(job.script for job in plan.jobs)]
    return {name: hashlib.sha256(_as_bytes(files[name])).hexdigest() for name in names}


def _as_bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _digest(files: Mapping[str, str | bytes]) -> str:
    content = hashlib.sha256()
    for name, data in sorted(files.items()):
        content.update(name.encode() + b"\0" + _as_bytes(data) + b"\0")
    return content.hexdigest()[:16]


def _cluster_facts(profile: ClusterProfile, choices: UserChoices) -> dict[str, Any]:
    """Return the part of the profile that later stages need, because they never read the profile."""
    return {
        "name": profile.name,
        "title": profile.title,
        "status": profile.status,
        "scheduler": profile.scheduler.model_dump(mode="json", exclude_none=True),
        "environments": profile.environments.model_dump(
            mode="json", exclude_none=True, exclude=set() if profile.environments.owners else {"owners"}
        )
        | ({"root": choices.environments_root} if choices.environments_root else {}),
        "cores": {name: node.usable_cores for name, node in profile.node_types.items()},
    }
