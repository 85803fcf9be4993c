"""Run one rank of one attempt of a cell, from the plan to the closed record."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcrl.catalogue.registry import is_out_of_memory
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.attempts import Start, end_attempt, note_unmeasured
from hpcrl.formats.plan import CHECKPOINTS, CLOCKS, RECORDS, Cell, Job, Plan, read_cells
from hpcrl.placeholders import fill
from hpcrl.run.allocation import Allocation, limit_gpus, limit_threads
from hpcrl.run.standing import lacks
from hpcrl.surroundings import describe, expanded, fault, read_surroundings

# Exit codes of a rank, so that a failed cell is a failed job.
EXIT = {"completed": 0, "preempted": 0, "failed": 1, "diverged": 1, "oom": 1, "timeout": 1}


def cell_of(directory: Path, job: Job, task: int) -> Cell:
    """Return the cell of an array index.

    Raises:
        UsageError: the job has no such index.
    """
    if not 0 <= task < job.count:
        raise UsageError(f"job {job.name}: expected a task from 0 to {job.count - 1}, got {task}")
    for cell in read_cells(directory, replace(job, first=job.first + task, count=1)):
        return cell
    raise UsageError(f"{directory}: has fewer cells than job {job.name} needs: make the plan again")


def run_cell(
    directory: Path, plan: Plan, job: Job, cell: Cell, allocation: Allocation, start: Start, interval: float = 1.0
) -> int:
    """Run a cell under telemetry, write its record and return the exit code of this rank.

    The caller has already taken the attempt (:func:`hpcrl.formats.attempts.take_attempt`).
    """
    surroundings = read_surroundings(plan.study.get("environment"))
    _check_environment(job, cell, surroundings is not None and "command" not in plan.workload)
    limit_threads(int(cell.resources["cpus"]), allocation.local_rank)
    values = {**cell.config, **cell.resources, "cell": cell.id}
    of_hpcrl = _set_variables({name: fill(text, values) for name, text in plan.workload.get("env", {}).items()})
    limit_gpus(-(-int(cell.resources.get("gpus", 0)) // int(cell.resources.get("nodes", 1))))
    # Imported here, because NumPy reads the number of threads at its import.
    from hpcrl.formats.record import UNMEASURED
    from hpcrl.rl.distributed.group import Group
    from hpcrl.run.command import Places, run_command_cell, unsafe
    from hpcrl.run.events import DURING, LiveEvents, when, write_events
    from hpcrl.run.interrupt import Interrupt
    from hpcrl.run.judging import judged
    from hpcrl.run.metric_files import read_metric_files
    from hpcrl.run.recorder import Recorder, Sampler
    from hpcrl.run.together import Together
    from hpcrl.run.training import Ended, before_import, train_cell
    from hpcrl.telemetry import idle
    from hpcrl.telemetry.calibration import Calibration
    from hpcrl.telemetry.meter import Meter
    from hpcrl.telemetry.phases import PhaseClock
    from hpcrl.telemetry.processes import adopt_orphans, name_runner

    of_a_command = bool(plan.workload.get("command"))
    adopt_orphans()
    if of_a_command:
        name_runner()
    interrupt = Interrupt(allocation.ranks)
    first_on_node = allocation.local_rank == 0
    clock_offset = _clock_offset(directory, cell, allocation) if first_on_node else None
    idle_file = directory / idle.DIRECTORY / f"{allocation.node}.json"
    # The mark stays until this function ends: no other cell then measures an idle machine.
    baseline, _mark = idle.begin_cell(idle_file, float(plan.study.get("idle_seconds", 0)))
    calibration = Calibration(directory, allocation.node)
    seconds = float(plan.study.get("calibration_seconds", 0))
    calibrated = calibration.measure(seconds) if first_on_node and seconds else None
    begun = time.time()
    spent = os.times()
    before = spent.children_user + spent.children_system
    if not of_a_command:
        before += spent.user + spent.system
    clock = PhaseClock()
    path = _record_of(directory, cell, allocation)
    if path.exists():
        raise UsageError(f"{path}: this attempt already has a record: make sure that it does not run twice")
    group = Group(allocation.rank, allocation.ranks, allocation.local_rank, allocation.addresses)
    environment = {name: value for name, value in (os.environ | of_hpcrl).items() if value is not None}
    before_import(cell.config, cell.resources, group)
    expected = plan.study.get("expect", {})
    tensorboard = when(plan.study, cell.config) if not of_a_command else None
    places = Places.of(directory, plan.workload, cell.id)
    shows = allocation.rank == 0 and tensorboard in ("during", "after")
    live = shows and tensorboard == "during"
    recorder = Recorder(path, clock, cpu_before=before, wanted=expected)
    facts = _facts(directory, plan, job, cell, allocation)
    if first_on_node:
        facts |= {"idle_cpu_percent": baseline.cpu_percent, "idle_memory_percent": baseline.memory_percent}
    recorder.header(facts | {"clock_offset": clock_offset, "tensorboard": tensorboard})
    if first_on_node and baseline.note:
        recorder.event(baseline.note)
    if live:
        recorder.events = LiveEvents(places.own, recorder.started, allocation.node, allocation.attempt)
        recorder.event(DURING)
    if calibrated:
        recorder.calibration(calibrated)
    # The ranks of a cell are siblings: mpirun or the process that started them is their parent.
    root = _starter() if allocation.ranks > 1 else os.getpid()
    sampler = Sampler(recorder, root, interval, environment) if first_on_node else None
    meter = Meter(within=not of_a_command)
    if allocation.ranks == 1:
        recorder.meter = meter
    suffix = f"-{allocation.rank}" if allocation.ranks > 1 else ""
    checkpoint = directory / CHECKPOINTS / f"{cell.id}{suffix}.npz"
    try:
        if of_a_command:
            keep = sampler.processes() if sampler else []
            together = Together(directory, start, allocation.rank, allocation.ranks) if allocation.ranks > 1 else None
            ended = run_command_cell(
                plan.workload, values, places, recorder, clock, lambda: interrupt.caught, keep, together, surroundings
            )
        else:
            if shows and (wrong := unsafe(places)):
                shows = False
                raise UsageError(wrong)
            ended = train_cell(
                plan.workload,
                cell.config,
                cell.resources,
                plan.study.get("goal"),
                recorder,
                clock,
                interrupt.stop,
                checkpoint,
                group,
                bool(plan.study.get("precise_phases")),
            )
    except HpcrlError as error:
        print(f"hpcrl: {error}", file=sys.stderr)
        ended = Ended("failed", str(error), {})
    except MemoryError:
        ended = Ended("oom", "out of memory", {})
    except Exception as error:  # a workload may raise any exception, and its record must be closed
        traceback.print_exc()
        kind = "oom" if is_out_of_memory(str(error)) else "failed"
        first_line = next(iter(str(error).strip().splitlines()), "")
        ended = Ended(kind, f"{type(error).__name__}: {first_line}".removesuffix(": "), {})
    used = meter.usage()  # before waiting for the sampler, whose usage is not the workload's
    if metrics := plan.workload.get("metrics"):
        known = values | {"workdir": places.code}
        if surroundings and surroundings.path:  # whose libraries read what its programs write
            sys.path += map(str, expanded(surroundings.path).glob("lib/python3*/site-packages"))
        for entry in read_metric_files(metrics, known, places.start, begun, recorder.event):
            recorder.value(entry)
    if sampler and (unmeasured := sampler.stop()):
        recorder.event(f"{UNMEASURED}: {unmeasured}")
        note_unmeasured(directory, start)
    if ended.outcome == "completed":
        checkpoint.unlink(missing_ok=True)
        if allocation.rank == 0:
            ended = judged(ended, expected, recorder.last if of_a_command else ended.facts)
    outcome, reason = ended.outcome, ended.reason
    requeue = False
    if outcome == "preempted" and allocation.ranks > 1:
        interrupt.wait(5)  # the signal of another rank came first
    if outcome == "preempted" and interrupt.caught == plan.workload.get("on_warning", "USR2"):
        most = int(plan.cluster["scheduler"].get("max_requeues", 3))
        requeue = allocation.key is not None and allocation.restarts < most
        if not requeue:
            outcome = "timeout"
            reason = f"the time limit was near after {allocation.restarts} requeues"
    elif outcome == "preempted":
        reason = reason or "ended by TERM; a checkpoint was kept"
    if first_on_node and not calibrated and (calibrated := calibration.read()):
        recorder.calibration(calibrated)
    written = recorder.footer(outcome, reason, ended.facts | recorder.known(used))
    if written:
        end_attempt(directory, start, outcome, allocation.rank, allocation.ranks)
    if shows and not live:
        write_events(path, places.own, allocation.node, allocation.attempt)
    if requeue and allocation.rank == 0 and allocation.key:
        from hpcrl.slurm.client import Slurm

        try:
            Slurm().requeue(allocation.key)
        except HpcrlError as error:
            print(f"hpcrl: the cell has a checkpoint, but was not requeued: {error}", file=sys.stderr)
            return 1
    return EXIT[outcome]


def _set_variables(wanted: dict[str, str]) -> dict[str, str | None]:
    """Set a study's variables. Return their old values, for hpcrl's own processes.

    PYTHONPATH is extended, not replaced, because commands find `hpcrl` there.
    """
    before = {name: os.environ.get(name) for name in wanted if not name.startswith("CUDA_")}
    if (python := wanted.get("PYTHONPATH")) and (there := os.environ.get("PYTHONPATH")):
        wanted = wanted | {"PYTHONPATH": f"{python}{os.pathsep}{there}"}
    os.environ.update(wanted)
    return before


def end_record_of(directory: Path, cell: Cell, allocation: Allocation, facts: dict[str, Any]) -> None:
    """Write the last frame of a rank that was killed, if it had begun its record."""
    from hpcrl.formats.record import end_record

    print(f"hpcrl: rank {allocation.rank} was {facts['reason']}", file=sys.stderr, flush=True)
    end_record(_record_of(directory, cell, allocation), facts)


def _record_of(directory: Path, cell: Cell, allocation: Allocation) -> Path:
    from hpcrl.formats.record import record_name

    return directory / RECORDS / record_name(cell.id, allocation.attempt, allocation.node, allocation.rank)


def _starter() -> int:
    """Return the process that started this node's ranks. Each rank has a supervisor between the two."""
    import psutil

    return psutil.Process(os.getppid()).ppid()


def _check_environment(job: Job, cell: Cell, standing: bool) -> None:
    """Check that the environment is the one that the plan locked; a user's own environment must have what the cell needs.

    Raises:
        UsageError: it is another environment, or a module is missing.
    """
    if standing:
        if wrong := lacks([str(cell.config["framework"])]):
            raise UsageError(wrong)
        return
    path = os.environ.get("HPCRL_ENV")
    if path is None:
        return
    try:
        key = json.loads((Path(path) / "hpcrl-environment.json").read_text())["key"]
    except (OSError, ValueError, KeyError):
        key = "an environment that hpcrl did not build"
    if key != (wanted := job.environment or cell.environment):
        raise UsageError(
            f"{path}: expected environment {wanted} (the plan's lock), got {key}: run hpcrl env create --plan PLAN"
        )


def _clock_offset(directory: Path, cell: Cell, allocation: Allocation) -> float | None:
    """Return by how many seconds this node's wall clock is ahead of the first node's; None if that is not known."""
    if allocation.nodes == 1:
        return None
    from hpcrl.telemetry.clocks import offset, serve

    file = directory / CLOCKS / f"{cell.id}.{allocation.attempt}"
    try:
        if allocation.rank == 0:
            serve(file, towards=allocation.addresses[-1].rpartition(":")[0])
            return 0.0
        found = offset(file)
    except OSError:  # a full disk, or no sockets: the cell still runs
        return None
    return found[0] if found else None


def _facts(directory: Path, plan: Plan, job: Job, cell: Cell, allocation: Allocation) -> dict[str, Any]:
    from hpcrl.formats.record import FORMAT
    from hpcrl.telemetry.provenance import hardware, numeric_variables, slurm_variables

    try:
        worker = hashlib.sha256((directory / plan.worker).read_bytes()).hexdigest()[:16]
    except OSError:
        worker = None
    return {
        "format": FORMAT,
        "hpcrl": plan.hpcrl,
        "worker": worker,
        "plan": plan.id,
        "study": plan.study["name"],
        "cluster": plan.cluster["name"],
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
        "node": allocation.node,
        "rank": allocation.rank,
        "ranks": allocation.ranks,
        "hardware": hardware(),
        "software": _software(plan),
        "variables": numeric_variables(),
        "slurm": slurm_variables(),
        "code": _code(directory, plan),
    }


def _software(plan: Plan) -> dict[str, str]:
    """Return the versions in the environment of the workload. Those in a command's modules or container are not known."""
    from hpcrl.telemetry.provenance import software, software_in

    how = read_surroundings(plan.study.get("environment"))
    if how is None or "command" not in plan.workload:
        return software()
    return software_in(expanded(how.path)) if how.path and not fault(how) else {}


def _code(directory: Path, plan: Plan) -> dict[str, Any]:
    """Return the commit of the directory where a command starts (for a copy: of its original), and an environment that is not hpcrl's."""
    from hpcrl.run.command import Places
    from hpcrl.telemetry.provenance import code

    workload = plan.workload
    how = read_surroundings(plan.study.get("environment"))
    standing = {"surroundings": json.dumps(describe(how), sort_keys=True)} if how else {}
    if not workload.get("command"):
        return {**code(), **standing}
    place = Places.of(directory, workload, "").code
    of_copy = {name: value for name, value in workload.get("code", {}).items() if name != "modules"}
    return {
        **code(place if place.is_dir() else None),
        **of_copy,
        "workdir": workload.get("workdir_of") or str(place),
        **standing,
    }
