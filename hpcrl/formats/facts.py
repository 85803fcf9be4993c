"""What a plan says of its study and its cluster, and what its cells ask for: checked and typed where the plan is read.

In the files they are mappings with more than that (`given`), which are kept and written as they were.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hpcrl.catalogue.registry import Scheduler, schedulers
from hpcrl.errors import suggestion
from hpcrl.formats.shapes import COUNT, FACTS, NUMBER, TEXT, TRUTH, first_wrong, shown
from hpcrl.profilers import LIMIT as PROFILE_LIMIT
from hpcrl.searches import SearchFacts
from hpcrl.surroundings import Surroundings, read_surroundings

# Values that a command reports under these names are its return.
RETURNS = ("return", "episode_return")
# The value that built-in training reports where an environment knows it: the largest mean return of its evaluations.
BEST_POSSIBLE = "best_possible_return"

# Resources that bound a cell and do not change what it computes.
LIMITS = ("time", "memory", "exclusive")
# Keys of a workload that do not change it either.
_HANDLING = ("on_warning", "workdir", "copy_workdir", "start_in", "metrics", "code", "workdir_of")


def computed(
    workload: Mapping[str, Any], resources: Mapping[str, Any], axes: Container[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what of a workload and of resources determines what a cell computes: limits only if they are axes."""
    return (
        {name: value for name, value in workload.items() if name not in _HANDLING},
        {name: value for name, value in resources.items() if name not in LIMITS or name in axes},
    )


def settings(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a workload sets for all of its cells, by name, as far as cells compute by it. A cell's configuration comes first."""
    kept, _ = computed(workload, {}, ())
    hyperparameters, variables = kept.pop("hyperparameters", {}), kept.pop("env", {})
    all_of_it = {**kept, **hyperparameters, **{f"env.{name}": value for name, value in variables.items()}}
    return {name: value for name, value in all_of_it.items() if value not in (None, {}, [])}


@dataclass(frozen=True)
class Asked:
    """What one cell, or the job of a stage, asks for: cores and MiB of each rank, seconds, nodes, ranks, GPUs in all.

    With `overcommit` the ranks of a node share its `cpus` cores.
    """

    cpus: int
    memory: int
    time: int
    nodes: int = 1
    tasks: int = 1
    gpus: int = 0
    parallelism: str = "none"
    overcommit: bool = False

    @property
    def cores(self) -> int:
        return self.cpus * (self.nodes if self.overcommit else self.tasks)

    @property
    def gpus_per_node(self) -> int:
        return -(-self.gpus // self.nodes)

    def memory_per_node(self, memory: int | None = None) -> int:
        """Return the MiB of a node's ranks, with another `memory` of each if it is given."""
        return (memory or self.memory) * self.tasks // self.nodes


_ASKED = {attribute.name: COUNT for attribute in fields(Asked)} | {"parallelism": TEXT, "overcommit": TRUTH}


def read_asked(given: Mapping[str, Any]) -> Asked:
    """Read the resources of a job or cell.

    Raises:
        ValueError: a value is missing or has a wrong type.
    """
    if wrong := first_wrong(given, _ASKED) or first_wrong(
        given, dict.fromkeys(("cpus", "memory", "time"), COUNT), True
    ):
        raise ValueError(f"resources: {wrong}")
    return Asked(**{name: value for name in _ASKED if (value := given.get(name)) is not None})


@dataclass(frozen=True)
class StudyFacts:
    """What stages need of a study. `notify` is a URL or a command; `retry` and `expect` are the rules by cause and by value."""

    given: dict[str, Any] = field(repr=False)
    name: str
    title: str | None = None
    score: str | None = None
    better: str | None = None
    goal: float | None = None
    notify: str | list[str] | None = None
    retry: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    expect: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    axes: Mapping[str, Any] = field(default_factory=dict)
    search: SearchFacts | None = None
    max_parallel: int | None = None
    profile_limit: int = PROFILE_LIMIT
    precise_phases: bool = False
    tensorboard: str = "none"
    agents: str = "numpy"
    sample_interval: float = 1.0
    idle_seconds: float = 0.0
    calibration_seconds: float = 0.0
    surroundings: Surroundings | None = None

    @property
    def tracks(self) -> bool:
        """Whether a cell of built-in training sends its values to MLflow while it trains."""
        places = (self.given.get(name) for name in ("axes", "include", "zip", "random"))
        return self.given.get("tracking", "none") != "none" or any(map(_sets_tracking, places))


def _sets_tracking(part: Any) -> bool:
    if isinstance(part, Mapping):
        own = part.get("tracking", "none")
        return "mlflow" in str(own) or any(map(_sets_tracking, part.values()))
    return isinstance(part, list | tuple) and any(map(_sets_tracking, part))


_STUDY = {
    **dict.fromkeys(("name", "title", "paper", "score", "better", "tensorboard", "agents"), TEXT),
    **dict.fromkeys(("goal", "sample_interval", "idle_seconds", "calibration_seconds"), NUMBER),
    **dict.fromkeys(("retry", "expect", "axes"), FACTS),
    "search": FACTS,
    "max_parallel": COUNT,
    "profile_limit": COUNT,
    "precise_phases": TRUTH,
}


def read_study(given: Any) -> StudyFacts:
    """Read the study of a plan.

    Raises:
        ValueError: a value is missing or has a wrong type.
        UsageError: `environment` has a wrong form.
    """
    _check("study", given, _STUDY, "name")
    notify = given.get("notify")
    if notify is not None and not isinstance(notify, str | list):
        raise ValueError(f"study: 'notify': expected a URL or a command, got {shown(notify)!r}")
    plain = {attribute.name for attribute in fields(StudyFacts)} - {"given", "surroundings", "search"}
    values = {name: value for name in plain if (value := given.get(name)) is not None}
    surroundings = read_surroundings(given.get("environment"))
    return StudyFacts(given, **values, search=_read_search(given.get("search")), surroundings=surroundings)


_SEARCH = {
    "trials": COUNT, "seed": COUNT, "space": FACTS, "directions": FACTS, "sampler": TEXT, "pruner": TEXT, "pruner_options": FACTS,
}  # fmt: skip


def _read_search(given: Any) -> SearchFacts | None:
    """Read the search of a plan's study; None if it has none.

    Raises:
        ValueError: a value is missing or has a wrong type.
    """
    if given is None:
        return None
    required = {name: _SEARCH[name] for name in ("trials", "space", "directions")}
    wrong = first_wrong(given, _SEARCH) or first_wrong(given, required, True)
    if wrong:
        raise ValueError(f"search: {wrong}")
    return SearchFacts(**{name: given[name] for name in _SEARCH if name in given})


@dataclass(frozen=True)
class ClusterFacts:
    """What stages need of a cluster. `environments` says how software environments are made there."""

    given: dict[str, Any] = field(repr=False)
    name: str
    title: str
    scheduler: Scheduler
    environments: Mapping[str, Any]
    poll_interval: float = 30.0
    max_array_size: int = 1001
    max_requeues: int = 3

    @property
    def poll_seconds(self) -> float:
        """The time between two looks at the plan. Sites ask for few requests; a look at this machine's own queue is free."""
        return 1.0 if self.scheduler.here else self.poll_interval


_SCHEDULER = {"kind": TEXT, "poll_interval": NUMBER, "max_array_size": COUNT, "max_requeues": COUNT}


def read_cluster(given: Any) -> ClusterFacts:
    """Read the cluster of a plan.

    Raises:
        ValueError: a value is missing or has a wrong type, or this hpcrl does not know the scheduler.
    """
    _check(
        "cluster", given, {"name": TEXT, "title": TEXT, "scheduler": FACTS, "environments": FACTS}, "name", "scheduler"
    )
    scheduler = given["scheduler"]
    _check("scheduler", scheduler, _SCHEDULER, "kind")
    kind = scheduler["kind"]
    if kind not in schedulers():
        raise ValueError(f"scheduler: no scheduler {kind!r}; {suggestion(kind, schedulers())}")
    limits = {name: value for name in _SCHEDULER if name != "kind" and (value := scheduler.get(name)) is not None}
    title, environments = given.get("title") or given["name"], given.get("environments") or {}
    return ClusterFacts(given, given["name"], title, schedulers()[kind], environments, **limits)


def _check(what: str, given: Any, kinds: Mapping[str, str], *required: str) -> None:
    if not isinstance(given, dict):
        raise ValueError(f"{what}: expected a mapping, got {shown(given)!r}")
    wrong = first_wrong(given, kinds) or first_wrong(given, {name: kinds[name] for name in required}, True)
    if wrong:
        raise ValueError(f"{what}: {wrong}")
