"""The plan directory: what `plan` writes once and every later stage reads.

    plan.json        the manifest (:class:`Plan`)
    cells.jsonl      one cell per line; the cells of a job are consecutive
    scripts/         one sbatch script per job and stage
    environments/    conda YAML and requirements of each software environment
    worker.zip       the part of hpcrl that runs inside a cell

A plan that is extended gets a new generation: a new manifest, and new names for what differs (``cells-2.jsonl``,
``worker-2.zip``, ``scripts/X-g2.sbatch``). The older manifest is kept as ``plan-1.json``, with all the files that it names,
so that its pending jobs run what they were submitted for.

The stages add ``ledger.sqlite``, ``logs/``, ``records/``, ``checkpoints/``, ``agents/`, `profiles/``, ``idle/``, ``calibration/``, ``clocks/``, ``cells/`` beside these and change
none of them. ``workdir-<digest>/`` is a copy of the directory in which the study's commands start, if the study asks for one. ``jobs/claims/`` has the claims of the study's paper, for its report.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

from hpcrl.catalogue.training import frameworks_of, ranks_with_actors
from hpcrl.errors import UsageError, count, suggestion
from hpcrl.formats.facts import Asked, ClusterFacts, StudyFacts, read_asked, read_cluster, read_study
from hpcrl.formats.files import is_plain_name, open_of_stranger
from hpcrl.formats.shapes import first_wrong_field, shown
from hpcrl.pins import Requirement, read_requirements, unhashed

VERSION = 2
MAX_MANIFEST = 64 * 1024**2  # bytes of plan.json
MANIFEST = "plan.json"
CELLS = "cells.jsonl"
WORKER = "worker.zip"
CELL_DIRECTORIES = "cells"
RECORDS = "records"
LOGS = "logs"
CHECKPOINTS = "checkpoints"
AGENTS = "agents"
CLOCKS = "clocks"
STAGES = ("environments", "cells", "feed", "collect", "report", "notify")
_CELL_ID = re.compile(r'\{"id": "([0-9a-z]+)"')
_OLD_MANIFEST = re.compile(r"plan-([1-9][0-9]{0,8})\.json")
_RESTORE = "restore it from a copy, or plan again into another directory"


@dataclass(frozen=True)
class Cell:
    """One point of the matrix: `config` for the workload, `resources` for the scheduler."""

    id: str
    config: dict[str, Any]
    resources: dict[str, Any]
    environment: str

    @property
    def asked(self) -> Asked:
        """What it asks for.

        Raises:
            ValueError: the plan's line lacks it.
        """
        return read_asked(self.resources)

    def to_line(self) -> str:
        return json.dumps(vars(self), ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Job:
    """What Slurm sees: `count` cells from line `first` of `cells_file`, as one array (or one job of another stage).

    `cells_per_task` cells run one after another in each array task. A job of cells waits for those of earlier waves. `resources` are what one cell asks for. A retry may
    raise the time of an array task to `max_time` seconds and the memory of a rank to `max_memory` MiB; None: no known limit.
    """

    name: str
    stage: str
    script: str
    first: int
    count: int
    array: bool
    environment: str | None
    resources: dict[str, Any]
    partition: str | None
    qos: str | None
    node_type: str | None
    throttle: int | None
    core_hours: float
    gpu_hours: float
    billed: float
    cells_file: str = CELLS
    cells_per_task: int = 1
    max_time: int | None = None
    max_memory: int | None = None
    wave: int = 0

    @property
    def asked(self) -> Asked:
        """What one cell asks for. :func:`read_plan` has checked it."""
        return read_asked(self.resources)

    @property
    def tasks(self) -> int:
        """Return how many array tasks the script has."""
        return -(-self.count // self.cells_per_task)


@dataclass(frozen=True)
class Environment:
    """One software environment of the plan; `key` names its directory and holds the hash of its rendering.

    `build` is a source distribution that is built against the rest, with the variables `settings`; one of `build_hashes` is its SHA-256. `libraries` says
    into which package's directory the shared libraries of which others are linked.
    """

    key: str
    name: str
    flavour: str
    horovod: bool
    python: str
    imports: list[str]
    find_links: list[str]
    conda: str
    requirements: str
    framework: str | None = None
    build: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    build_hashes: list[str] = field(default_factory=list)

    def unhashed(self) -> list[str]:
        """Return the pins that have no hash, `build` included."""
        pins = read_requirements(self.requirements)
        if self.build:
            pins.append(Requirement(self.build, tuple(self.build_hashes)))
        return unhashed(pins)

    @property
    def hashed(self) -> bool:
        """Tell whether every package is checked by a hash."""
        return not self.unhashed()


@dataclass(frozen=True)
class Unplaced:
    """Cells that the cluster cannot run: how many, why, and the nearest request that fits."""

    cells: int
    config: dict[str, Any]
    resources: dict[str, Any]
    reason: str
    nearest: str | None

    @property
    def asked(self) -> Asked:
        """What one cell asks for. :func:`read_plan` has checked it."""
        return read_asked(self.resources)


@dataclass(frozen=True)
class Plan:
    """The manifest. `id` names the plan through all its generations.

    `limits` is the site's maximum of jobs per user in the queue: ``{"submitted": all or None, "queued": {qos: jobs}}``.
    `reused` says where the cells that were left out are completed, by their ids. `digests` are the SHA-256 of the scripts, the worker
    and the cells, by file name; plans of older versions of hpcrl have none.
    """

    id: str
    hpcrl: str
    study: StudyFacts
    cluster: ClusterFacts
    workload: dict[str, Any]
    chain: str
    jobs: list[Job]
    environments: list[Environment]
    unplaced: list[Unplaced]
    totals: dict[str, Any]
    generation: int
    cells_file: str
    worker: str
    limits: dict[str, Any]
    reused: dict[str, str]
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def runs_command(self) -> bool:
        """Whether the cells run a command of the user, not built-in training."""
        return bool(self.workload.get("command"))

    def is_wanted(self, job: Job) -> bool:
        """Tell whether a job is submitted: the message is one only if it has a receiver."""
        return job.stage != "notify" or bool(self.study.notify)

    def job(self, name: str) -> Job:
        for job in self.jobs:
            if job.name == name:
                return job
        raise UsageError(f"the plan has no job {name!r}; {suggestion(name, [job.name for job in self.jobs])}")

    def environment(self, key: str) -> Environment:
        return next(environment for environment in self.environments if environment.key == key)

    def workload_of(self, config: Mapping[str, Any]) -> str:
        """Return what a cell runs: the name of its algorithm, or ``command``."""
        if self.runs_command:
            return "command"
        return str(config.get("algorithm", self.workload.get("algorithm")))

    def frameworks_of(self, config: Mapping[str, Any]) -> list[str]:
        """Return the frameworks that a cell uses, its learner's first; of a command what the study calls so, if it does."""
        named = [str(config["framework"])] if "framework" in config else []
        return named if self.runs_command else frameworks_of({**self.workload.get("hyperparameters", {}), **config})

    def has_actors(self, config: Mapping[str, Any]) -> bool:
        """Tell whether a cell is a learner and its actors; a command's `topology` is its own."""
        values = {**self.workload.get("hyperparameters", {}), **config}
        return not self.runs_command and ranks_with_actors(values) is not None

    def cell_jobs(self) -> list[Job]:
        return [job for job in self.jobs if job.stage == "cells"]

    def to_text(self) -> str:
        """Write the manifest with one job, environment or unplaced group on each line."""
        content: dict[str, Any] = {"format": "hpcrl-plan", "version": VERSION, **vars(self)}
        content |= {"study": self.study.given, "cluster": self.cluster.given}
        parts = []
        for name, value in sorted(content.items()):
            if name in ("jobs", "environments", "unplaced"):
                text = "[" + ",".join(f"\n  {_dumps(vars(entry))}" for entry in value) + "]"
            else:
                text = _dumps(value)
            parts.append(f" {_dumps(name)}: {text}")
        return "{\n" + ",\n".join(parts) + "\n}\n"


def _dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def agent_file(directory: Path, cell: str, which: str) -> Path:
    """Return the file of a cell's trained agent: the `best` or the `last` one."""
    return directory / AGENTS / f"{cell}-{which}.npz"


def old_manifest(generation: int) -> str:
    """Return the name of the manifest of an older generation."""
    return f"plan-{generation}.json"


def generations(directory: Path) -> list[int]:
    """Return the older generations whose manifests a plan directory has, newest first."""
    matches = [_OLD_MANIFEST.fullmatch(path.name) for path in directory.glob("plan-*.json")]
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def read_plan(directory: Path, generation: int | None = None) -> Plan:
    """Read the manifest of a plan directory: the newest, or that of an older `generation`.

    Raises:
        UsageError: it is missing or damaged, or an hpcrl with another plan format made it.
    """
    path = directory / (old_manifest(generation) if generation else MANIFEST)
    try:
        with open_of_stranger(path, most=MAX_MANIFEST) as file:
            content = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        lacks = f"no {MANIFEST}" if directory.is_dir() or not directory.exists() else "it is a file"
        raise UsageError(f"{directory}: is not a plan directory ({lacks}): make one with `hpcrl plan`") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is damaged ({error}): make the plan again") from None
    if not isinstance(content, dict) or content.pop("format", None) != "hpcrl-plan":
        raise UsageError(f"{path}: is not a plan's manifest: make the plan again, or name another directory")
    version = content.pop("version", None)
    if version != VERSION:
        made_by = content.get("hpcrl", "?")
        raise UsageError(
            f"{path}: plan format {version} (hpcrl {made_by}), but this hpcrl reads format {VERSION}: "
            "plan again into another directory, or use that hpcrl"
        )
    try:
        content["jobs"] = [Job(**job) for job in content["jobs"]]
        content["environments"] = [Environment(**environment) for environment in content["environments"]]
        content["unplaced"] = [Unplaced(**group) for group in content["unplaced"]]
        content["study"], content["cluster"] = read_study(content["study"]), read_cluster(content["cluster"])
        content.setdefault("digests", {})
        plan = Plan(**{attribute.name: content[attribute.name] for attribute in fields(Plan)})
        _check(plan)
        return plan
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: is damaged ({error}): make the plan again") from None


def _check(plan: Plan) -> None:
    """Check the types in a manifest, and that its names lead to files of the plan only.

    Raises:
        ValueError: something is wrong.
    """
    for made in (plan, *plan.jobs, *plan.environments, *plan.unplaced):
        if wrong := first_wrong_field(made):
            raise ValueError(f"{type(made).__name__.lower()}: {wrong}")
    names = [plan.id, plan.study.name, plan.cluster.name, plan.cells_file, plan.worker]
    names += [name for job in plan.jobs for name in (job.name, job.cells_file, job.script.removeprefix("scripts/"))]
    for name in names:
        if type(name) is not str or not is_plain_name(name):
            raise ValueError(f"{shown(name)!r} is not a plain name")
    for job in plan.jobs:
        if job.first < 0 or job.count < 0 or job.cells_per_task < 1:
            raise ValueError(f"job {job.name}: expected numbers of cells of at least 0")
    for resources in [*(job.resources for job in plan.jobs), *(group.resources for group in plan.unplaced)]:
        read_asked(resources)


def find_job(directory: Path, name: str) -> tuple[Plan, Job]:
    """Find a job in the plan or, newest first, in its older generations; return also the manifest that has it.

    Raises:
        UsageError: no generation has it.
    """
    plan = read_plan(directory)
    for manifest in every_generation(directory, plan):
        for job in manifest.jobs:
            if job.name == name:
                return manifest, job
    raise UsageError(f"the plan has no job {name!r}; {suggestion(name, [job.name for job in plan.jobs])}")


def every_generation(directory: Path, plan: Plan | None = None) -> Iterator[Plan]:
    """Read the manifests of a plan, the newest first."""
    yield plan or read_plan(directory)
    for generation in generations(directory):
        yield read_plan(directory, generation)


def read_cells(directory: Path, of: Plan | Job | None = None) -> Iterator[Cell]:
    """Read the cells of a plan, or of one of its jobs, in their order. Without `of`: of the newest manifest.

    Raises:
        UsageError: a line is damaged.
    """
    chosen = of or read_plan(directory)
    path = directory / chosen.cells_file
    start, stop = (chosen.first, chosen.first + chosen.count) if isinstance(chosen, Job) else (0, None)
    try:
        with open_of_stranger(path) as file:
            for number, line in enumerate(islice(file, start, stop), start=start + 1):
                try:
                    cell = _cell(line)
                except (ValueError, TypeError, RecursionError):
                    raise UsageError(f"{path}:{number}: is damaged: {_RESTORE}") from None
                yield cell
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is damaged: {_RESTORE}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def _cell(line: str) -> Cell:
    cell = Cell(**json.loads(line))
    types = type(cell.id), type(cell.config), type(cell.resources), type(cell.environment)
    if types != (str, dict, dict, str) or not is_plain_name(cell.id):
        raise ValueError("it is not a cell")
    return cell


def cells_at(directory: Path, plan: Plan, places: set[int]) -> dict[int, Cell]:
    """Read the cells at some places of a plan. The other lines are not parsed.

    Raises:
        UsageError: a line is damaged.
    """
    path = directory / plan.cells_file
    try:
        with open_of_stranger(path) as file:
            lines = {number: line for number, line in enumerate(file) if number in places}
        return {number: _cell(line) for number, line in lines.items()}
    except (ValueError, TypeError, RecursionError):
        raise UsageError(f"{path}: is damaged: {_RESTORE}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def cell_ids(directory: Path, plan: Plan) -> list[str]:
    """Return the ids of a plan's cells in their order, without reading the rest of each line.

    Raises:
        UsageError: a line is damaged or missing.
    """
    path = directory / plan.cells_file
    try:
        with open_of_stranger(path) as file:
            ids = [match[1] for line in file if (match := _CELL_ID.match(line))]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    wanted = sum(job.count for job in plan.cell_jobs())
    if len(ids) != wanted:
        raise UsageError(f"{path}: expected {count(wanted, 'cell')}, got {len(ids)}: {_RESTORE}")
    return ids


def check_cells(directory: Path, plan: Plan) -> None:
    """Make sure that the files of cells of all generations were not changed since they were planned.

    A submission grants lines by their numbers: in a changed file it would run other cells.

    Raises:
        UsageError: one was changed, or cannot be read.
    """
    digests: dict[str, str | None] = {}
    for manifest in every_generation(directory, plan):
        digests[manifest.cells_file] = digests.get(manifest.cells_file) or manifest.digests.get(manifest.cells_file)
    for name, digest in digests.items():
        if not has_digest(directory / name, digest):
            raise UsageError(f"{directory / name}: was changed after the plan was made: {_RESTORE}")


def has_digest(path: Path, digest: str | None) -> bool:
    """Tell whether a file of a plan has this SHA-256. None: the plan is older than digests, and any content counts.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with open_of_stranger(path, "rb") as file:
            return digest in (None, hashlib.file_digest(file, "sha256").hexdigest())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def every_cell(directory: Path, plan: Plan) -> Iterator[tuple[Plan, Cell]]:
    """Read the cells of all generations of a plan, each cell once, with the newest manifest that has it.

    Raises:
        UsageError: a line or a manifest is damaged.
    """
    seen: set[str] = set()
    files: set[str] = set()
    for manifest in every_generation(directory, plan):
        if manifest.cells_file in files:
            continue
        files.add(manifest.cells_file)
        for cell in read_cells(directory, manifest):
            if cell.id not in seen:
                seen.add(cell.id)
                yield manifest, cell


def format_tasks(tasks: Iterable[int]) -> str:
    """Write indices as Slurm's array syntax: ``0-3,7``."""
    ordered = sorted(set(tasks))
    runs: list[list[int]] = []
    for task in ordered:
        if runs and task == runs[-1][1] + 1:
            runs[-1][1] = task
        else:
            runs.append([task, task])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_tasks(text: str) -> list[int]:
    """Read what :func:`format_tasks` writes."""
    tasks: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        tasks.extend(range(int(first), int(last or first) + 1))
    return tasks
