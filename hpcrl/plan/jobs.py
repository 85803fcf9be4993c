"""The jobs of a plan and their scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from hpcrl.errors import UsageError
from hpcrl.formats.plan import LOGS, Job
from hpcrl.plan.before import Before
from hpcrl.plan.cells import Batch
from hpcrl.plan.cost import cost
from hpcrl.plan.limits import Demand, Stages, choose_cells_per_task, largest_arrays, longest, most_memory
from hpcrl.plan.pack import as_data, throttle
from hpcrl.plan.placement import NoPlace, place
from hpcrl.plan.requests import Options, Request, request
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.notify import Notify
from hpcrl.spec.rendering import Renderer
from hpcrl.spec.resources import Resources
from hpcrl.spec.study import Pin, Study
from hpcrl.spec.surroundings import surroundings_of
from hpcrl.surroundings import Surroundings

_STAGE_RESOURCES = {
    "environments": Resources.model_validate({"cpus": 4, "memory": "8G", "time": "02:00:00"}),
    "collect": Resources.model_validate({"memory": "4G", "time": "01:00:00"}),
    "report": Resources.model_validate({"memory": "4G", "time": "00:30:00"}),
    "feed": Resources.model_validate({"memory": "2G", "time": "00:30:00"}),
    "notify": Resources.model_validate({"memory": "2G", "time": "00:10:00"}),
}
# Optional stages: if one fits nowhere, the user does its work at a terminal.
_SPARE = ("feed", "notify")


@dataclass(frozen=True)
class UserChoices:
    """The user's choices: account, e-mail, directory of environments, chain, phases, whether a retired site is allowed.

    `cells_per_task` cells run one after another in each array task; None: as many as the site's limits require.
    `notify` replaces the study's own, `notify_by_default` is used if there is no other. `settings` are ``key=value``
    texts that replace values of the study's file.
    """

    account: str | None = None
    email: str | None = None
    environments_root: str | None = None
    chain: str | None = None
    precise_phases: bool = False
    allow_retired: bool = False
    cells_per_task: int | None = None
    notify: Notify | None = None
    notify_by_default: Notify | None = None
    settings: tuple[str, ...] = ()


@dataclass
class Made:
    """The jobs in the order of the chain, their scripts by name, and the lines of their cells in the same order."""

    jobs: list[Job] = field(default_factory=list)
    scripts: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


# The environments of a job's cells in their order: the number of cells up to the end of each, and its key.
Software: TypeAlias = Sequence[tuple[int, str]]


@dataclass(frozen=True)
class _Writer:
    """Renders the script of a job, and gives the job its name."""

    profile: ClusterProfile
    study: Study
    choices: UserChoices
    renderer: Renderer
    worker: str
    before: Before | None
    surroundings: Surroundings | None

    def write(
        self, job: Job, asked: Request, lines: list[str] | None = None, software: Software = ()
    ) -> tuple[Job, str]:
        """Return a job and its script. A job of the previous generation with the same script and cells keeps its name."""
        before = self.before
        if before and (old := before.jobs.get(job.name)):
            same = replace(job, name=old.name, script=old.script)
            text = self._render(same, asked, software)
            if before.keeps(old.script, text) and (lines is None or before.has_cells(old, lines)):
                return same, text
        if before and (old or job.name in before.taken):
            name = f"{job.name}-g{before.next}"
            job = replace(job, name=name, script=_script_name(name))
        return job, self._render(job, asked, software)

    def _render(self, job: Job, asked: Request, software: Software) -> str:
        return _script(
            self.renderer, self.profile, self.study, self.choices, job, asked, self.worker, self.surroundings, software
        )


def write_jobs(
    profile: ClusterProfile,
    study: Study,
    choices: UserChoices,
    renderer: Renderer,
    batches: Sequence[Batch],
    worker: str,
    before: Before | None = None,
    home: str | None = None,
) -> Made:
    """Make the jobs of a plan within the site's limits, and render their scripts.

    Args:
        home: the environment of hpcrl's own processes, if it is not that of the cells.

    Raises:
        UsageError: a stage fits nowhere, the site forbids an option that a job needs, or its limits are too small.
    """
    made = Made()
    surroundings = surroundings_of(study.environment)
    writer = _Writer(profile, study, choices, renderer, worker, before, surroundings)
    stages = _stage_jobs(profile, study, choices) if batches else {}
    counted = {name: job.qos for name, (job, _) in stages.items() if name != "notify" or study.notify}
    beside = Stages(counted)
    demands = [Demand(len(batch.ids), batch.placement, batch.resources.time) for batch in batches]
    numbers = choose_cells_per_task(profile, demands, beside, choices.cells_per_task)
    largest = largest_arrays(profile, demands, beside, numbers)
    names: dict[str, int] = {}

    def add(job: Job, asked: Request, lines: list[str] | None = None, software: Software = ()) -> None:
        job, made.scripts[job.script] = writer.write(job, asked, lines, software)
        made.jobs.append(job)

    if "environments" in stages:
        add(*stages.pop("environments"))
    for together, number in _together(study, batches, numbers):
        batch = together[0]
        whole = batch.resources.model_copy(update={"time": batch.resources.time * number})
        asked = request(profile, batch.placement, whole, choices.account, choices.email)
        size = largest[batch.placement.qos] * number
        cells = [(line, member.environment) for member in together for line in member.lines]
        for start in range(0, len(cells), size):
            chunk = cells[start : start + size]
            lines, software = [line for line, _ in chunk], _software(key for _, key in chunk)
            environment = home or (software[0][1] if len(software) == 1 else None)
            stem = f"{study.name}-{batch.environment.rpartition('-')[0] if len(together) == 1 else 'cells'}"
            names[stem] = names.get(stem, 0) + 1
            name = f"{stem}-{names[stem]}"
            job = _cell_job(profile, study, batch, name, len(made.lines), len(lines), number)
            add(replace(job, environment=environment), asked, lines, software)
            made.lines += lines
    for job, request_of_stage in stages.values():
        add(job, request_of_stage)
    return made


def _together(study: Study, batches: Sequence[Batch], numbers: Sequence[int]) -> list[tuple[list[Batch], int]]:
    """Return the batches that share jobs, and how many of their cells run in each array task."""
    groups: dict[object, tuple[list[Batch], int]] = {}
    for index, (batch, number) in enumerate(zip(batches, numbers, strict=True)):
        shared = study.one_job_per == "resources" and number == 1  # the cells of a task have one environment
        groups.setdefault((batch.resources, batch.placement, batch.wave) if shared else index, ([], number))[0].append(
            batch
        )
    return list(groups.values())


def _software(keys: Iterable[str]) -> Software:
    ends = {}
    for number, key in enumerate(keys, 1):
        ends[key] = number
    return [(end, key) for key, end in ends.items()]


def _stage_jobs(profile: ClusterProfile, study: Study, choices: UserChoices) -> dict[str, tuple[Job, Request]]:
    """Return the jobs of the other stages in their order, by stage."""
    staged = "staged" in study.chain
    wanted = ["environments"] if staged else []
    wanted += [] if profile.scheduler.here else ["feed"]
    wanted += ["collect", "report"] if staged else []
    made = {stage: _stage_job(stage, profile, study, choices) for stage in [*wanted, "notify"]}
    return {stage: pair for stage, pair in made.items() if pair}


def _script_name(job: str) -> str:
    return f"scripts/{job}.sbatch"


def _cell_job(
    profile: ClusterProfile, study: Study, batch: Batch, name: str, first: int, count: int, cells_per_task: int
) -> Job:
    one = cost(profile, batch.placement, batch.resources)
    return Job(
        name=name,
        stage="cells",
        script=_script_name(name),
        first=first,
        count=count,
        array=True,
        environment=batch.environment,
        resources=as_data(batch.resources),
        partition=batch.placement.partition,
        qos=batch.placement.qos,
        node_type=batch.placement.node_type,
        throttle=throttle(profile, study, batch.placement),
        core_hours=round(one.core_hours * count, 6),
        gpu_hours=round(one.gpu_hours * count, 6),
        billed=round((one.billed or 0.0) * count, 6),
        max_time=longest(profile, batch.placement),
        cells_per_task=cells_per_task,
        wave=batch.wave,
        max_memory=most_memory(profile, batch.placement, batch.resources),
    )


def _stage_job(stage: str, profile: ClusterProfile, study: Study, choices: UserChoices) -> tuple[Job, Request] | None:
    resources = _STAGE_RESOURCES[stage]
    pin = Pin()
    if stage == "environments" and profile.environments.build_partition:
        pin = Pin(partition=profile.environments.build_partition, qos=profile.environments.build_qos)
    if profile.scheduler.here:
        most = max(node.memory for node in profile.node_types.values())
        resources = resources.model_copy(update={"cpus": 1, "memory": min(resources.memory, most)})
    spot = place(profile, resources, pin, any_cpu=True)
    if isinstance(spot, NoPlace):
        if stage in _SPARE:
            return None
        raise UsageError(
            f"cluster {profile.name}: the stage `{stage}` fits nowhere: {spot.reason}: plan without it (--chain parallel)"
        )
    job = Job(
        name=f"{study.name}-{stage}",
        stage=stage,
        script=_script_name(f"{study.name}-{stage}"),
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
    surroundings: Surroundings | None,
    software: Software,
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
            "ranks": job.asked.tasks,
            "worker": worker,
            "surroundings": surroundings,
            "software": software,
            "trains": study.workload.trains,
            "paper": study.paper,
            "environments_root": choices.environments_root or profile.environments.root,
        },
    )
    for command in profile.environments.forbidden:
        if command in text:
            raise UsageError(
                f"{template}: would run `{command}`, which {profile.title} forbids: remove it from the template or the profile's script.lines"
            )
    return text


def _signal_lead(profile: ClusterProfile, job: Job) -> int:
    """Return the option that requests the warning signal: early enough for a checkpoint, but in the second half of the time."""
    return max(10, min(profile.scheduler.signal_lead, job.asked.time // 4))
