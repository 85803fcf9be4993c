"""Check a training study against the catalogue: algorithm, frameworks and environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hpcrl.catalogue import fields
from hpcrl.catalogue.registry import Algorithm, Framework, algorithms, frameworks, modes
from hpcrl.errors import suggestion, written
from hpcrl.spec.checks import Fault, assignments, combinations
from hpcrl.spec.explain import Key
from hpcrl.spec.gym import environment_fault
from hpcrl.spec.resources import RESOURCES

if TYPE_CHECKING:
    from hpcrl.spec.study import Study


def training_faults(study: Study) -> Iterator[Fault]:
    """Give the faults in hyperparameters, axes, frameworks, modes and environment of a training study."""
    workload = study.workload
    if workload.algorithm is None or workload.environment is None:
        return
    algorithm = algorithms()[workload.algorithm]
    in_workload: list[Fault] = [
        (("workload", "hyperparameters", name), wrong)
        for name, wrong in fields.faults(algorithm.settings, workload.hyperparameters)
    ]
    in_axes = list(_axis_faults(study, algorithm))
    yield from (*in_workload, *in_axes)
    if not in_axes:
        yield from _combination_faults(study, algorithm)
    if not in_axes and not in_workload:
        yield from _settings_faults(study, algorithm)
    if wrong_environment := environment_fault(
        workload.environment, algorithm.title, algorithm.actions, algorithm.observations
    ):
        yield ("workload", "environment"), wrong_environment


def _axis_faults(study: Study, algorithm: Algorithm) -> Iterator[Fault]:
    settings = fields.names(algorithm.settings)
    known = {"framework", "execution", *RESOURCES, *settings, *study.workload.placeholders()}
    if study.computed:
        from hpcrl.spec.computed import names_in

        known |= names_in(study.computed)
    told: set[Key] = set()
    for path, key, value in assignments(study):
        if key not in known:
            at = path if isinstance(path[-1], str) else path[:-1]
            if at not in told:
                told.add(at)
                yield at, f"no hyperparameter or resource {key!r}; {suggestion(key, known)}"
        elif key == "framework" and value not in algorithm.frameworks:
            whose = f"{algorithm.title} has " if value in frameworks() else ""
            yield path, f"{whose}no framework {written(value)}; {suggestion(str(value), algorithm.frameworks)}"
        elif key == "execution" and value not in modes():
            yield path, f"no execution mode {written(value)}; {suggestion(str(value), modes())}"
        elif key in settings and (wrong := fields.fault(algorithm.settings, key, value)):
            yield path, wrong


def _combination_faults(study: Study, algorithm: Algorithm) -> Iterator[Fault]:
    told = set()
    for values, paths in combinations(study, ("framework", "execution", "parallelism", "gpus")):
        framework = frameworks().get(str(values.get("framework")))
        if framework is None:
            continue
        for key, others, wrong in _cannot(algorithm, framework, values):
            rule = {name: values[name] for name in (*others, key)} if key in paths else {}
            shown = ", ".join(f"{name}: {value}" for name, value in rule.items())
            path = paths.get(key, ("resources", key))
            if (path, shown) not in told:
                told.add((path, shown))
                yield path, wrong + (f": leave it out with `exclude: [{{{shown}}}]`" if rule else "")


def _settings_faults(study: Study, algorithm: Algorithm) -> Iterator[Fault]:
    """Give settings that are valid alone, but not together or not for the ranks of a cell. Each setting is named once."""
    given, known = study.workload.hyperparameters, fields.names(algorithm.settings)
    told: set[str] = set()
    for values, paths in combinations(study, (*known, "tasks", "parallelism", "gpus")):
        own = {key: value for key, value in values.items() if key in known}
        settings = fields.check(algorithm.name, algorithm.settings, {**given, **own})
        ranks = 1 if values["parallelism"] == "none" else values["tasks"] or max(values["gpus"], 2)
        if (wrong := algorithm.fault(settings, ranks)) and wrong[0] not in told:
            told.add(wrong[0])
            place = ("workload", "hyperparameters", wrong[0]) if wrong[0] in given else ("workload", "algorithm")
            yield paths.get(wrong[0], place), wrong[1]


def _cannot(
    algorithm: Algorithm, framework: Framework, values: dict[str, Any]
) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Give each key with a value that is not possible, the other keys of a rule that excludes it, and the reason."""
    execution, parallelism = values["execution"], values["parallelism"]
    for key, known in (("execution", framework.modes), ("parallelism", ("none", *framework.parallelism))):
        if values[key] not in known:
            yield (
                key,
                ("framework",),
                f"{framework.name}: {key}: expected one of {', '.join(known)}, got {written(values[key])}",
            )
    if execution == "fused" and execution in framework.modes and not algorithm.fused:
        yield "execution", ("framework",), f"{algorithm.title} has no {execution} mode"
    if execution in framework.one_process and parallelism != "none":
        yield "parallelism", ("execution",), f"{execution} supports a single process only"
    if values["gpus"] and "cuda" not in framework.devices:
        yield "gpus", ("framework",), f"{framework.title} supports the CPU only"
