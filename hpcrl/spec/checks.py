"""Check that a study's axes, rules and placeholders agree. Each fault has its own place in the file."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from hpcrl.catalogue.registry import frameworks
from hpcrl.errors import UsageError, suggestion, written
from hpcrl.placeholders import placeholders
from hpcrl.spec.axes import MAX_CELLS, options
from hpcrl.spec.explain import Key
from hpcrl.spec.resources import RESOURCES, resource_fault

if TYPE_CHECKING:
    from hpcrl.spec.study import Study

Fault = tuple[Key, str]
Tracking = Literal["none", "mlflow", "mlflow-inline"]
TRACKING = get_args(Tracking)
_FIXED = {
    "algorithm",
    "environment",
    "framework",
    "execution",
    "seed",
    "seeds",
    "cell",
    "workdir",
    "profile",
    "tracking",
}


@dataclass(frozen=True)
class Outcomes:
    """The results of a study's expressions: the different values of each key, and the faults of expressions without a value."""

    values: tuple[tuple[str, Any], ...] = ()
    faults: tuple[Fault, ...] = ()


def study_faults(study: Study) -> Iterator[Fault]:
    """Give the faults of a study, except those of its algorithm and frameworks."""
    for at, axis in _named(study):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", axis):
            yield at, f"{axis!r} is not a name: use letters, digits and _"
        if axis in ("seed", "seeds"):
            yield at, f"`{axis}` is not an axis: write `seeds:` at the top level"
        if axis == "workdir":
            yield at, "{workdir} already means the directory of the code: choose another name"
        if at[0] == "computed" and axis in _FIXED - {"seed", "seeds", "workdir"}:
            yield at, f"{axis} cannot be computed: make it an axis instead"
    for axis, values in study.axes.items():
        at = ("axes", axis)
        if not values:
            yield at, "has no values: give at least one"
        if len({repr(value) for value in values}) < len(values):
            yield at, "repeats a value"
    if study.computed:
        from hpcrl.spec.computed import computed_faults  # Jinja: only where it is needed

        yield from computed_faults(study.computed, in_expressions(study))
    yield from study.outcomes.faults
    for path, key, value in assignments(study):
        if isinstance(value, str) and "\0" in value:
            yield path, "contains a NUL character"
        elif key in RESOURCES and (wrong := resource_fault(key, value)):
            yield path, wrong
    names = study.factors() | {"seed", "cell"}
    if study.workload.trains:
        names |= {"execution"}
    if study.search:
        names |= set(study.search.space)
    for number, rule in enumerate(study.exclude):
        for key in rule.model_extra or {}:
            if key not in names:
                yield ("exclude", number, key), f"no axis {key!r}; {suggestion(key, names)}"
    if len(set(study.seeds)) < len(study.seeds):
        repeated = next(seed for seed, count in Counter(study.seeds).items() if count > 1)
        yield ("seeds",), f"repeats {repeated}"
    yield from _exclusion_faults(study)
    for path, text in study.workload.texts():
        if "\0" in text:
            yield ("workload", *path), "contains a NUL character"
        for name in placeholders(text):
            if name not in {*names, *RESOURCES, "workdir"}:
                words = f"{suggestion(name, {*names, *RESOURCES})} (write {{{{{name}}}}} for plain braces)"
                yield ("workload", *path), f"{{{name}}} is not an axis; {words}"
    yield from _goal_and_score(study)
    yield from _scaling_faults(study)
    if not study.workload.trains:
        yield from _node_faults(study)


def _node_faults(study: Study) -> Iterator[Fault]:
    """Give numbers of tasks of a command that leave a node without one."""
    told = set()
    for values, paths in combinations(study, ("tasks", "nodes")):
        tasks, nodes = values["tasks"], values["nodes"]
        at = paths.get("tasks", ("resources", "tasks"))
        if isinstance(tasks, int) and isinstance(nodes, int) and tasks < nodes and at not in told:
            told.add(at)
            yield at, f"expected at least {nodes}, one on each node, got {tasks}"


def _scaling_faults(study: Study) -> Iterator[Fault]:
    """Give the faults of `scaling`: a size that is not a number in each cell, or only one number of cores."""
    if study.scaling is None:
        return
    given = list(assignments(study))
    names = study.factors() - set(RESOURCES)
    for name in dict.fromkeys(study.scaling.size):
        if name not in names:
            yield ("scaling", "size"), f"no axis {name!r}; {suggestion(name, names)}"
        for path, key, value in given:
            if key == name and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                yield (
                    path,
                    f"expected a number above 0, because it is the size of the problem (`scaling`), got {written(value)}",
                )
    if not study.factors() & {"tasks", "cpus", "nodes"}:
        yield ("scaling",), "needs cells with different numbers of cores: make `tasks`, `cpus` or `nodes` an axis"


def assignments(study: Study) -> Iterator[tuple[Key, str, Any]]:
    """Give each key that the axes and the included cells set: its place, its name, its value."""
    for axis in options(study):
        for option in axis:
            for key, value in option.values.items():
                yield option.paths[key], key, value
    for number, extra in enumerate(study.include):
        for key, value in extra.items():
            yield ("include", number, key), key, value
    for key, value in study.outcomes.values:
        yield ("computed", key), key, value


def _named(study: Study) -> Iterator[tuple[Key, str]]:
    """Give the place and the name of each axis, of each key of `zip` and `random`, and of each computed value."""
    for axis in study.axes:
        yield ("axes", axis), axis
    for number, together in enumerate(study.zip or ()):
        for key in together:
            yield ("zip", number, key), key
    for key in study.random.draw if study.random else ():
        yield ("random", "draw", key), key
    for key in study.computed or ():
        yield ("computed", key), key


def computed_outcomes(study: Study) -> Outcomes:
    """Evaluate the expressions of a study in all its cells. Cells with equal values of the names in them count once."""
    if not study.computed:
        return Outcomes()
    from hpcrl.spec.computed import ComputeError, computed_faults, names_in

    if list(computed_faults(study.computed, in_expressions(study))):
        return Outcomes()
    results: dict[str, tuple[str, Any]] = {}
    faults: dict[Fault, None] = {}
    names = names_in(study.computed)
    defaults = {name: getattr(study.resources, name) for name in RESOURCES}
    for given, _ in _points(study, names | {key for rule in study.exclude for key in rule.model_extra or {}}):
        point = study.with_defaults(given)
        if study.excludes({**defaults, **point}):
            continue
        for seed in study.seeds if "seed" in names else study.seeds[:1]:
            try:
                values = study.computed_of(point, seed)
            except ComputeError as error:
                faults[("computed", error.args[0]), error.args[1]] = None
            except (ValueError, UsageError):
                continue  # a resource of the point is wrong, which is a fault of its own
            else:
                results |= {repr(item): item for item in values.items()}
    return Outcomes(tuple(results.values()), tuple(faults))


def in_expressions(study: Study) -> set[str]:
    """Return the names that expressions may use."""
    names = {key for axis in options(study) for option in axis for key in option.values}
    names |= {key for extra in study.include for key in extra}
    known = [study.known_hyperparameters(algorithm) for algorithm in (*study.algorithms(), None)]
    return names | {*RESOURCES, "seed"} | set().union(*known)


def _exclusion_faults(study: Study) -> Iterator[Fault]:
    """Give the values of exclusion rules that no axis has, because the rule would exclude nothing."""
    known: dict[str, set[str]] = {}
    for _, key, value in assignments(study):
        known.setdefault(key, set()).add(str(value))
    for number, rule in enumerate(study.exclude):
        for key, wanted in (rule.model_extra or {}).items():
            for value in wanted if isinstance(wanted, list) else [wanted]:
                if key in known and key not in RESOURCES and key != "execution" and str(value) not in known[key]:
                    yield (
                        ("exclude", number, key),
                        f"the axis has no value {written(value)}; {suggestion(str(value), known[key])}",
                    )


def _goal_and_score(study: Study) -> Iterator[Fault]:
    trains = study.workload.trains
    for key in ("score", "better"):
        if trains and getattr(study, key):
            yield (key,), f"`{key}` is for commands: remove it, because built-in training is compared by its return"
    if not trains and study.tensorboard != "none":
        yield (
            ("tensorboard",),
            "`tensorboard` is for built-in training: remove it, and let the command write its own events",
        )
    if not trains and study.tracking != "none":
        yield ("tracking",), "`tracking` is for built-in training: remove it, and let the command log its own values"
    if not trains and "agents" in study.model_fields_set:
        yield ("agents",), "`agents` is for built-in training: remove it, and let the command save its own agents"
    if study.better and not study.score and not trains:
        yield ("better",), "`score` is missing: name the reported value, such as `score: loss`"
    if trains and study.goal is None and (path := study.stops_at_goal()):
        yield path, "`stop_at_goal` needs a `goal`: give the return that counts as solved at the study's top level"
    if trains and "framework" not in study.factors():
        yield ("axes",), f"`framework` is missing; {suggestion('framework', frameworks())}"


def combinations(study: Study, keys: Collection[str]) -> Iterator[tuple[dict[str, Any], dict[str, Key]]]:
    """Give the points of the matrix that no rule excludes. Points with equal values of the named keys count once.

    Axes that set neither one of the keys nor a key of a rule are left out. Each point has the place of each value.
    A matrix that is too large for a plan gives no points.
    """
    computed = study.computed or {}
    wanted = set(keys) | {key for rule in study.exclude for key in rule.model_extra or {}}
    if needed := wanted & set(computed):
        from hpcrl.spec.computed import ComputeError, names_in

        wanted |= names_in(computed)
    defaults = {name: getattr(study.resources, name) for name in RESOURCES}
    for given, paths in _points(study, wanted):
        point = study.with_defaults(given)
        if needed:
            try:
                point |= study.computed_of(point, study.seeds[0])
            except (ComputeError, UsageError, ValueError):
                continue
            paths = paths | {key: ("computed", key) for key in computed}
        if not study.excludes({**defaults, **point}):
            yield {**defaults, **point}, paths


def _points(study: Study, wanted: set[str]) -> Iterator[tuple[dict[str, Any], dict[str, Key]]]:
    """Give the points of the matrix and the included cells, without the axes that set none of the wanted keys.

    Each point has the place of each value. A matrix that is too large for a plan gives no points.
    """
    axes = options(study)
    choices = [axis for axis in axes if any(wanted & set(option.values) for option in axis)]
    if math.prod(map(len, choices)) > MAX_CELLS:
        return
    for chosen in itertools.product(*choices) if axes or not study.include else ():
        yield (
            {key: value for option in chosen for key, value in option.values.items()},
            {key: path for option in chosen for key, path in option.paths.items()},
        )
    for number, extra in enumerate(study.include):
        yield dict(extra), {key: ("include", number, key) for key in extra}
