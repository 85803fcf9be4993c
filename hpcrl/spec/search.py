"""A search for hyperparameters in a study: the space, the sampler and the pruner, all of them Optuna's."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from hpcrl.catalogue import fields
from hpcrl.catalogue.environments import OWN_ENVIRONMENTS
from hpcrl.catalogue.registry import Algorithm, frameworks
from hpcrl.errors import UsageError, suggestion, written
from hpcrl.profilers import KEY as PROFILE
from hpcrl.searches import BEST, ID, KEYS, OBJECTIVES, PRUNERS, ROLE, TRIAL, TRIALS, first_pruning
from hpcrl.spec.axes import MAX_CELLS, Option
from hpcrl.spec.checks import assignments, combinations, in_expressions
from hpcrl.spec.explain import Key
from hpcrl.spec.options import (
    EPISODE_LIMIT,
    episode_fault,
    episode_limit_fault,
    fault_of_option,
    options_at,
    options_of_study,
)
from hpcrl.spec.resources import RESOURCES, Model, Scalar, averaging_ranks
from hpcrl.spec.training import cannot

if TYPE_CHECKING:
    from hpcrl.spec.study import Study

_TAKEN = {
    *(*KEYS, ID, *RESOURCES, PROFILE),
    *("seed", "cell", "workdir", "topology", "actors", "algorithm", "framework", "execution"),
}
# Largest numbers of extreme points of a space and of combinations of the axes that are checked, and of random draws at each of these.
_CORNERS, _COMBINATIONS, _DRAWS = 1024, 32, 100
_Number = Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True, allow_inf_nan=False)]


class Range(Model):
    """Numbers from `low` to `high`, both included: whole ones if both are whole."""

    low: _Number
    high: _Number
    log: bool = Field(False, description="whether the logarithm is drawn")
    step: _Number | None = None

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def faults(self) -> Iterator[tuple[Key, str]]:
        if self.low >= self.high:
            yield (), f"expected `low` below `high`, got {self.low} and {self.high}"
        if self.log and self.low <= 0:
            yield ("low",), f"expected a number greater than 0, because `log` is true, got {self.low}"
        if self.step is None:
            return
        if self.log:
            yield ("step",), "a range with `log` has no `step`: remove one of the two"
        if self.step <= 0:
            yield ("step",), f"expected a number greater than 0, got {self.step}"
        elif self.whole and not isinstance(self.step, int):
            yield ("step",), f"expected a whole number, as `low` and `high` are, got {self.step}"
        elif not math.isclose((span := (self.high - self.low) / self.step), round(span), abs_tol=1e-9):
            yield ("step",), f"expected a divisor of {self.high - self.low:g}, which is `high` - `low`, got {self.step}"

    def ends(self) -> tuple[Scalar, ...]:
        return self.low, self.high

    def drawn(self, draw: random.Random) -> Scalar:
        """Return a random number of the range."""
        if self.step is not None:
            return self.low + self.step * draw.randint(0, round((self.high - self.low) / self.step))
        if self.log:
            value = math.exp(draw.uniform(math.log(self.low), math.log(self.high)))
            return min(max(round(value), int(self.low)), int(self.high)) if self.whole else value
        return draw.randint(int(self.low), int(self.high)) if self.whole else draw.uniform(self.low, self.high)


class Search(Model):
    """A search: `trials` cells that draw hyperparameters, then cells of the best ones on the study's seeds."""

    trials: int = Field(ge=1, le=MAX_CELLS, strict=True, description="number of trials")
    space: dict[str, tuple[Scalar, ...] | Range] = Field(
        min_length=1, description="name: a list of values, or {low, high, log, step}"
    )
    sampler: Literal["tpe", "random", "nsga2"] = Field("tpe", description="Optuna's sampler")
    pruner: Literal["none", "median", "hyperband", "halving"] = Field(
        "none", description="Optuna's pruner, which ends trials early by their evaluations"
    )
    pruner_options: dict[str, Annotated[int, Field(strict=True)]] | None = Field(
        None, min_length=1, description="options of Optuna's pruner; a resource or step of it is an evaluation"
    )
    directions: dict[str, Literal["maximize", "minimize"]] | None = Field(
        None,
        min_length=1,
        description="objective: maximize or minimize; of built-in training final_score, best_score, mean_score (of all evaluations) or "
        "training_time; of a command a reported value. Of several, the first chooses among the best; default: final_score, or the study's score",
    )
    seed: int = Field(
        0, ge=0, lt=2**63, strict=True, description="seed of the sampler and of the trials; none of `seeds`"
    )

    def identity(self) -> dict[str, Any]:
        """Return what the cells' ids depend on, and what makes it another search: with more trials, the earlier ones stay."""
        return self.model_dump(mode="json", exclude_none=True, exclude={"trials"})

    def options(self) -> list[Option]:
        """Return the axis of the trials, with the cells of the best one at its end."""
        paths: dict[str, Key] = {name: ("search", "trials") for name in KEYS}
        trials = [{ROLE: TRIAL, TRIAL: number} for number in range(1, self.trials + 1)]
        return [Option(values, paths) for values in (*trials, {ROLE: BEST, TRIALS: self.trials})]


def seeds_of(study: Study, point: Mapping[str, Any]) -> Sequence[int]:
    """Return the seeds of a point of the matrix: a trial has that of the search."""
    return (study.search.seed,) if study.search and point.get(ROLE) == TRIAL else study.seeds


def directions_of(study: Study) -> dict[str, str]:
    """Return the objectives of a study's search with their directions."""
    if study.search is None:
        return {}
    if study.search.directions:
        return dict(study.search.directions)
    if study.workload.trains:
        return {"final_score": OBJECTIVES["final_score"]}
    return {study.score or "return": "minimize" if study.better == "lower" else "maximize"}


def search_faults(study: Study) -> Iterator[tuple[Key, str]]:
    """Give the faults of a study's search."""
    search = study.search
    if search is None:
        return
    keys = study.factors() - set(KEYS)
    for name in sorted({*KEYS, ID} & set(study.axes)):
        yield ("axes", name), f"`{name}` is a key of the search: choose another name"
    wrong = list(_space_faults(search, keys))
    yield from wrong
    yield from _computed_faults(study, search)
    if search.seed in study.seeds:
        yield (
            ("search", "seed"),
            f"{search.seed} is one of the study's seeds, on which the best trial runs anew: choose another",
        )
    resources, own = study.resources, study.workload.hyperparameters
    several = resources.tasks not in (None, 1) or resources.parallelism != "none" or resources.nodes != 1
    if several or {"topology", "actors"} & set(own) or keys & {"tasks", "nodes", "topology", "actors", "parallelism"}:
        yield ("search",), "trials have one rank: remove `tasks`, `parallelism` and topologies"
    for number, rule in enumerate(study.exclude):
        for name, value in (rule.model_extra or {}).items():
            seeds = value if isinstance(value, list) else [value]
            if name in KEYS or (name == "seed" and search.seed in seeds):
                at = ("exclude", number, name)
                yield at, "would exclude trials, which the best one is chosen from: set `search.trials`"
    yield from _pruner_faults(search)
    yield from _objective_faults(study, search)
    sound = set(search.space) - {str(at[2]) for at, _ in wrong}
    yield from _of_training(study, search, sound) if study.workload.trains else _of_commands(study, search)


def _space_faults(search: Search, keys: set[str]) -> Iterator[tuple[Key, str]]:
    """Give what is wrong with the parameters of the space, whatever the workload is.

    Args:
        keys: what the study's axes set.
    """
    for name, values in search.space.items():
        at: Key = ("search", "space", name)
        if name in _TAKEN:
            yield at, f"{name} has another meaning in a search: choose another name"
        elif name in keys:
            yield at, f"{name} is set by an axis, too: remove one of the two"
        elif isinstance(values, Range):
            yield from (((*at, *below), text) for below, text in values.faults())
        elif len(values) < 2:
            yield at, "expected at least two values"
        elif len({repr(value) for value in values}) < len(values):
            yield at, "repeats a value"
        elif any(isinstance(value, list | tuple | dict) for value in values):
            yield at, "expected numbers, texts, true or false as values"


def _computed_faults(study: Study, search: Search) -> Iterator[tuple[Key, str]]:
    """Give the values that a plan would have to compute before the search draws what they depend on."""
    if not study.computed:
        return
    from hpcrl.spec.computed import names_in  # Jinja: only where it is needed

    for name, text in study.computed.items():
        for drawn in sorted(names_in({name: text}) & set(search.space) & in_expressions(study)):
            yield (
                ("computed", name),
                f"is computed from {drawn}, which each trial draws only when it starts: remove it, or take {drawn} out of `search.space`",
            )


def _pruner_faults(search: Search) -> Iterator[tuple[Key, str]]:
    known, given = PRUNERS[search.pruner], search.pruner_options or {}
    for name, value in given.items():
        at: Key = ("search", "pruner_options", name)
        if not known:
            yield at, f"pruner {search.pruner} has no options: remove it, or choose a pruner"
        elif name not in known:
            yield at, f"{search.pruner} has no option {name!r}; {suggestion(name, known)}"
        elif value < known[name]:
            yield at, f"expected a whole number of at least {known[name]}, got {value}"
    least, most = given.get("min_resource", 1), given.get("max_resource", math.inf)
    if most < least:
        yield (
            ("search", "pruner_options", "max_resource"),
            f"expected at least min_resource, which is {least}, got {most}",
        )


def _objective_faults(study: Study, search: Search) -> Iterator[tuple[Key, str]]:
    names = list(search.directions or {})
    if study.workload.trains:
        for name in names:
            if name not in OBJECTIVES:
                yield ("search", "directions", name), f"no objective {name!r}; {suggestion(name, OBJECTIVES)}"
    if len(names) > 1 and search.pruner != "none":
        yield ("search", "pruner"), "a pruner needs one objective: name one in `directions`, or remove `pruner`"
    if len(directions_of(study)) == 1 and search.sampler == "nsga2":
        yield ("search", "sampler"), "nsga2 is for several objectives: use tpe"


def _of_commands(study: Study, search: Search) -> Iterator[tuple[Key, str]]:
    for name in search.space:
        if name not in study.workload.placeholders():
            yield ("search", "space", name), f"no part of the workload has {{{name}}}: write it into `command` or `env`"
    if search.pruner != "none":
        yield ("search", "pruner"), "a pruner needs the evaluations of built-in training: remove it"


def _of_training(study: Study, search: Search, sound: set[str]) -> Iterator[tuple[Key, str]]:
    """Give the faults of a search of built-in training.

    Args:
        sound: the parameters of which nothing was found to be wrong yet.
    """
    algorithms = study.algorithms()
    options = options_of_study(study)
    settled = len(sound) < len(search.space)
    for name, values in search.space.items():
        if name not in sound:
            continue
        at: Key = ("search", "space", name)
        if name in study.workload.hyperparameters:
            yield at, f"{name} is set in `workload.hyperparameters`, too: remove one of the two"
        ends = values.ends() if isinstance(values, Range) else values
        for algorithm in algorithms:
            if wrong := _value_faults(study, algorithm, name, ends, options):
                settled = True
                yield at, wrong
                break
        if name == "stepping" and (wrong := _software_fault(study, ends)):
            settled = True
            yield at, wrong
    if settled:
        return
    yield from _joint_faults(study, search)
    if search.pruner != "none":
        yield from _evaluations_faults(study, search)


def _software_fault(study: Study, ways: Sequence[Any]) -> str | None:
    """Say that a trial would choose its software environment; None if all these ways of stepping have the same."""
    if study.environment:
        return None
    named = {str(value) for _, key, value in assignments(study) if key == "framework"}
    for framework in (frameworks()[name] for name in sorted(named & set(frameworks()))):
        if len({framework.software_of(way) for way in ways}) > 1:
            return f"{framework.title} has another software environment for compiled environments, which a trial cannot choose: make it an axis"
    return None


def _evaluations_faults(study: Study, search: Search) -> Iterator[tuple[Key, str]]:
    """Give the first combination of the axes whose trials have too few evaluations for the pruner, also in the longest ones of the space."""
    first = first_pruning(search.pruner, search.pruner_options or {})
    ends: dict[str, Any] = {
        name: domain.ends() if isinstance(domain, Range) else domain for name, domain in search.space.items()
    }
    for values, _ in combinations(study, ("algorithm", "total_steps", "evaluation_interval")):
        settings: dict[str, Any] = {**study.known_hyperparameters(study.algorithm_of(values)), **values}
        total = max(ends.get("total_steps", [settings.get("total_steps")]))
        interval = min(ends.get("evaluation_interval", [settings.get("evaluation_interval")]))
        if not isinstance(total, int) or not isinstance(interval, int) or interval < 1:  # a fault of its own
            continue
        if (number := -(-total // interval)) > first:
            continue
        if number == 1:
            how = f"a trial of {total:,} steps is evaluated once, at its end (`evaluation_interval` {interval:,})"
        else:
            how = (
                f"{search.pruner} with these options waits for evaluation {first}, and a trial of {total:,} steps has {number}, the last one at its "
                f"end (`evaluation_interval` {interval:,})"
            )
        yield ("search", "pruner"), f"{how}, so that nothing can be pruned"
        return


def _value_faults(
    study: Study, algorithm: Algorithm, name: str, values: Sequence[Any], options: set[str]
) -> str | None:
    """Say what is wrong with a parameter of the space or with one of its values; None if nothing is."""
    known = fields.names(algorithm.settings)
    for value in values:
        if name in known:
            wrong = fields.fault(algorithm.settings, name, value)
        elif name == EPISODE_LIMIT:
            wrong = episode_limit_fault(value)
        elif name in options:
            wrong = fault_of_option(study, study.environment_ids(), name, value)
        else:
            wrong = f"{algorithm.title} has no hyperparameter {name!r}; {suggestion(name, {*known, *options})}"
        if wrong:
            return wrong
    return None


def _joint_faults(study: Study, search: Search) -> Iterator[tuple[Key, str]]:
    """Give what is valid alone and cannot be trained together: extreme points of the space, and spaces of which most draws are so.

    A trial whose draw cannot be trained fails, and its cell draws again.
    """
    ends = {name: domain.ends() if isinstance(domain, Range) else domain for name, domain in search.space.items()}
    own = {name for algorithm in study.algorithms() for name in fields.names(algorithm.settings)}
    keys = ("algorithm", "environment", "framework", "execution", "parallelism", "tasks", EPISODE_LIMIT)
    told: set[Key] = set()
    for values, _ in itertools.islice(
        combinations(study, (*keys, *sorted(own | options_of_study(study)))), _COMBINATIONS
    ):
        corners = itertools.islice(itertools.product(*ends.values()), _CORNERS)
        points = [dict(zip(ends, corner, strict=True)) for corner in corners]
        draw = random.Random(0)
        drawn = [{name: _drawn(domain, draw) for name, domain in search.space.items()} for _ in range(_DRAWS)]
        wrong = [(point, fault) for point in drawn if (fault := _fault_at(study, values, point))]
        found = [(point, fault, "") for point in points if (fault := _fault_at(study, values, point))]
        if not found and 2 * len(wrong) > _DRAWS:
            why = f": of {_DRAWS} random draws {len(wrong)} cannot be trained, and each of them would be a failed trial"
            found = [(*wrong[0], why)]
        for point, (name, text), why in found[:1]:
            at: Key = ("search", "space", name) if name in point else ("search", "space")
            if at not in told:
                told.add(at)
                shown = ", ".join(f"{key}: {written(value)}" for key, value in point.items())
                yield at, f"{text} (at {shown}){why}: narrow the space" + (", or give it a `step`" if why else "")


def _drawn(domain: tuple[Scalar, ...] | Range, draw: random.Random) -> Scalar:
    return domain.drawn(draw) if isinstance(domain, Range) else draw.choice(domain)


def _fault_at(study: Study, values: Mapping[str, Any], point: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the setting that cannot be trained at a point of the space and of the matrix, and why; None if all can."""
    whole = {**values, **point}
    algorithm, environment = study.algorithm_of(whole), study.environment_id(whole)
    framework = frameworks().get(str(whole.get("framework")))
    if algorithm is None or framework is None or not environment:  # a fault of its own
        return None
    names = fields.names(algorithm.settings)
    given = {**study.workload.hyperparameters, **whole}
    try:
        settings = fields.check(
            algorithm.name, algorithm.settings, {key: value for key, value in given.items() if key in names}
        )
    except UsageError:  # a fault of its own
        return None
    ranks = 1
    if whole["parallelism"] != "none":
        ranks = whole["tasks"] or averaging_ranks(whole["gpus"], whole["nodes"])
    if wrong := algorithm.fault(settings, ranks):
        return wrong
    options = options_at(study, whole)
    if own := OWN_ENVIRONMENTS.get(environment):
        try:
            own.with_options(environment, options)
        except UsageError as error:
            name, _, text = str(error).removeprefix(f"{environment}: ").partition(": ")
            return (name, text) if name in point else None
    if wrong := episode_fault(study, algorithm, settings, whole):
        return wrong
    shown = () if own else tuple(sorted(options.items()))
    searched = (fault for fault in cannot(algorithm, framework, environment, shown, given) if fault[0] in point)
    return next(((name, text) for name, _, text in searched), None)
