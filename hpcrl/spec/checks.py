"""What a study's axes, rules and placeholders must agree on; each fault has its own place in the file."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from hpcrl.catalogue.registry import frameworks
from hpcrl.errors import suggestion, written
from hpcrl.placeholders import placeholders
from hpcrl.spec.explain import Key
from hpcrl.spec.resources import RESOURCES, resource_fault

if TYPE_CHECKING:
    from hpcrl.spec.study import Study

Fault = tuple[Key, str]
MAX_CELLS = 1_000_000


def study_faults(study: Study) -> Iterator[Fault]:
    """Give the faults of a study besides what its algorithm and frameworks cannot do."""
    for axis, values in study.axes.items():
        at: Key = ("axes", axis)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", axis):
            yield at, f"{axis!r} is not a name: use letters, digits and _"
        if axis in ("seed", "seeds"):
            yield at, "`seeds` is not an axis: write `seeds:` at the top level"
        if not values:
            yield at, "has no values: give at least one"
        if len({repr(value) for value in values}) < len(values):
            yield at, "repeats a value"
    for path, key, value in assignments(study):
        if isinstance(value, str) and "\0" in value:
            yield path, "holds a NUL character"
        elif key in RESOURCES and (wrong := resource_fault(key, value)):
            yield path, wrong
    names = study.factors() | {"seed", "cell"}
    if study.workload.algorithm:
        names |= {"execution"}
    for number, rule in enumerate(study.exclude):
        for key in rule.model_extra or {}:
            if key not in names:
                yield ("exclude", number, key), f"no axis {key!r}; {suggestion(key, names)}"
    if "workdir" in study.axes:
        yield ("axes", "workdir"), "{workdir} is the directory of the code: choose another name"
    for number, seed in enumerate(study.seeds):
        if seed in study.seeds[:number]:
            yield ("seeds",), f"has {seed} twice"
            break
    yield from _exclusion_faults(study)
    for path, text in study.workload.texts():
        if "\0" in text:
            yield ("workload", *path), "holds a NUL character"
        for name in placeholders(text):
            if name not in {*names, *RESOURCES, "workdir"}:
                words = f"{suggestion(name, {*names, *RESOURCES})} (write {{{{{name}}}}} for plain braces)"
                yield ("workload", *path), f"no axis for {{{name}}}; {words}"
    yield from _goal_and_score(study)
    yield from _scaling_faults(study)


def _scaling_faults(study: Study) -> Iterator[Fault]:
    """Give what keeps the size of a problem from being a number of each cell, and a study of one number of cores."""
    if study.scaling is None:
        return
    given = list(assignments(study))
    names = study.factors() - set(RESOURCES)
    for name in dict.fromkeys(study.scaling.size):
        if name not in names:
            yield ("scaling", "size"), f"no axis {name!r}; {suggestion(name, names)}"
        for path, key, value in given:
            if key == name and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                yield path, f"is the size of the problem (`scaling`): expected a number above 0, got {value!r}"
    if not study.factors() & {"tasks", "cpus", "nodes"}:
        yield ("scaling",), "needs several numbers of cores: make `tasks`, `cpus` or `nodes` an axis"


def assignments(study: Study) -> Iterator[tuple[Key, str, Any]]:
    """Give each key that the axes and the included cells set: where it stands, its name, its value."""
    for axis, values in study.axes.items():
        for index, value in enumerate(values):
            if isinstance(value, dict):
                for key, each in value.items():
                    yield ("axes", axis, index, key), key, each
            else:
                yield ("axes", axis, index), axis, value
    for number, extra in enumerate(study.include):
        for key, each in extra.items():
            yield ("include", number, key), key, each


def _exclusion_faults(study: Study) -> Iterator[Fault]:
    """Give the values of exclusion rules that no axis has: what was meant to be left out would run."""
    known: dict[str, set[str]] = {}
    for _, key, value in assignments(study):
        known.setdefault(key, set()).add(str(value))
    for number, rule in enumerate(study.exclude):
        for key, wanted in (rule.model_extra or {}).items():
            for value in wanted if isinstance(wanted, list) else [wanted]:
                if key in known and key not in RESOURCES and key != "execution" and str(value) not in known[key]:
                    yield (
                        ("exclude", number, key),
                        f"no value {written(value)} on that axis; {suggestion(str(value), known[key])}",
                    )


def _goal_and_score(study: Study) -> Iterator[Fault]:
    trains = study.workload.algorithm is not None
    for key in ("score", "better"):
        if trains and getattr(study, key):
            yield (key,), f"`{key}` is for commands: built-in training is compared by its return"
    if study.better and not study.score and not trains:
        yield ("better",), "`better` needs a `score`: name the reported value, such as `score: loss`"
    if trains and study.goal is None and (path := study.stops_at_goal()):
        yield path, "`stop_at_goal` needs a goal: say at the study's top level which return counts as solved"
    if trains and "framework" not in study.factors():
        yield ("axes",), f"`framework` is missing; {suggestion('framework', frameworks())}"


def combinations(study: Study, keys: Collection[str]) -> Iterator[tuple[dict[str, Any], dict[str, Key]]]:
    """Give the points of the matrix that no rule excludes, as far as the named keys tell them apart.

    Axes that set none of the keys, nor any key of a rule, are left out. Each point comes with the place of each value.
    Nothing comes of a matrix that is too large to be planned.
    """
    wanted = set(keys) | {key for rule in study.exclude for key in rule.model_extra or {}}
    choices: list[list[tuple[dict[str, Any], dict[str, Key]]]] = []
    for axis, values in study.axes.items():
        own: list[tuple[dict[str, Any], dict[str, Key]]] = []
        for index, value in enumerate(values):
            if isinstance(value, dict):
                own.append((value, {key: ("axes", axis, index, key) for key in value}))
            else:
                own.append(({axis: value}, {axis: ("axes", axis, index)}))
        if any(wanted & set(values_here) for values_here, _ in own):
            choices.append(own)
    if math.prod(map(len, choices)) > MAX_CELLS:
        return
    points = [
        ({key: value for values, _ in chosen for key, value in values.items()},
         {key: path for _, paths in chosen for key, path in paths.items()})
        for chosen in (itertools.product(*choices) if study.axes or not study.include else ())
    ]  # fmt: skip
    points += [
        (dict(extra), {key: ("include", number, key) for key in extra}) for number, extra in enumerate(study.include)
    ]
    defaults = {name: getattr(study.resources, name) for name in RESOURCES}
    for given, paths in points:
        point = study.with_defaults(given)
        if not study.excludes({**defaults, **point}):
            yield {**defaults, **point}, paths
