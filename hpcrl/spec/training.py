"""Check a training study against the catalogue: algorithm, frameworks and environment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hpcrl.catalogue import fields
from hpcrl.catalogue.environments import OWN_ENVIRONMENTS
from hpcrl.catalogue.images import filters_fault
from hpcrl.catalogue.registry import Algorithm, Framework, algorithms, frameworks, modes
from hpcrl.catalogue.training import (
    COMPILED_IN,
    NOT_FUSED,
    OffPolicySettings,
    OnPolicySettings,
    has_actors,
    ranks_with_actors,
)
from hpcrl.errors import count, suggestion, written
from hpcrl.profilers import FRAMEWORK, FROM, KEY, NONE, WINDOW
from hpcrl.searches import KEYS
from hpcrl.spec.checks import TRACKING, Fault, assignments, combinations
from hpcrl.spec.explain import Key
from hpcrl.spec.gym import environment_fault, image_side, lacks_jax, reward_range
from hpcrl.spec.options import (
    EPISODE_LIMIT,
    episode_fault,
    episode_limit_fault,
    longest_episode,
    option_faults,
    options_at,
    options_of_study,
    unnamed_option,
)
from hpcrl.spec.resources import RESOURCES, averaging_ranks, resource_fault

if TYPE_CHECKING:
    from hpcrl.spec.study import Study

# A key whose value is not possible, the other keys of a rule that excludes it, and the reason.
Impossible = tuple[str, tuple[str, ...], str]


def training_faults(study: Study) -> Iterator[Fault]:
    """Give the faults in hyperparameters, axes, frameworks, modes and environment of a training study."""
    workload = study.workload
    if not workload.trains:
        return
    used = study.algorithms()
    in_workload = list(_workload_faults(study, used))
    in_axes = list(_axis_faults(study, used))
    in_options = list(option_faults(study))
    yield from (*in_workload, *in_axes, *in_options)
    are_sound = not in_axes and not any(
        key in RESOURCES and resource_fault(key, value) for _, key, value in assignments(study)
    )
    if are_sound:
        known = {path for path, _ in in_workload}
        yield from (fault for fault in _combination_faults(study) if fault[0] not in known)
    if are_sound and not in_workload:
        yield from _settings_faults(study)
    if not in_options:
        yield from _environment_faults(study)


def _environment_faults(study: Study) -> Iterator[Fault]:
    """Give the first reason for which an algorithm cannot learn an environment, at an axis of its options if there is one."""
    names = (*sorted(options_of_study(study) & study.factors()), "environment")
    told: set[str] = set()
    for values, paths in combinations(study, ("algorithm", *names)):
        environment, algorithm = study.environment_id(values), study.algorithm_of(values)
        if not environment or environment in told or algorithm is None:
            continue
        wrong = environment_fault(
            environment,
            _options(study, values),
            algorithm.title,
            algorithm.actions,
            algorithm.observations,
            algorithm.bounded,
        )
        if wrong:
            told.add(environment)
            yield next((paths[name] for name in names if name in paths), ("workload", "environment")), wrong


def _options(study: Study, values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the options of a cell's environment that are texts, numbers, true or false."""
    options = options_at(study, values).items()
    return tuple(sorted((key, value) for key, value in options if isinstance(value, str | int | float | bool)))


def training_notes(study: Study) -> list[str]:
    """Return what the planner of a training study should know, one sentence each, without the full stop."""
    if not study.workload.trains:
        return []
    names = {name for owner in study.algorithms() for name in fields.names(owner.settings)}
    notes: dict[str, None] = {}
    for values, _ in combinations(study, ("algorithm", "environment", EPISODE_LIMIT, KEY, *WINDOW, *sorted(names))):
        algorithm = study.algorithm_of(values)
        if algorithm is None:
            continue
        own = {key: value for key, value in values.items() if key in fields.names(algorithm.settings)}
        settings = fields.check(algorithm.name, algorithm.settings, {**study.workload.hyperparameters, **own})
        begin = values.get(FROM, study.profile_from)
        if values.get(KEY, study.profile) != NONE and begin >= settings.total_steps:
            late = f"the profiler would begin at step {begin:,} ({FROM}), and the training has {settings.total_steps:,} steps"
            notes[f"{late}: give an earlier step, or there will be no profile"] = None
        if isinstance(settings, OnPolicySettings):
            rollout = settings.rollout_steps * settings.environments
            if settings.total_steps < rollout:
                short = f"{algorithm.title} learns after each rollout of {rollout:,} steps, so a training of {settings.total_steps:,} steps learns nothing"
                notes[f"{short}: raise total_steps, or lower rollout_steps"] = None
        elif text := _learning_note(algorithm, settings, values):
            notes[text] = None
        if (
            has_actors(settings)
            and getattr(settings, "train_unit", "") == "episodes"
            and not longest_episode(study, values)
        ):
            unknown = f"train_unit: episodes: no limit of steps is known here for {study.environment_id(values)}"
            notes[
                f"{unknown}, and without one actors cannot send whole episodes: set max_episode_steps of the workload"
            ] = None
        rewards = reward_range(study.environment_id(values))
        if rewards is None or study.workload.environment_options:
            continue
        # An episode that is cut off is bootstrapped: its value is that of one without end.
        gamma = getattr(settings, "gamma", 1.0)
        steps = 1 / (1 - gamma) if gamma < 1 else longest_episode(study, values) or math.inf
        least, most = (reward * steps if reward else 0.0 for reward in rewards)
        if text := algorithm.note(settings, min(0.0, least), max(0.0, most)):
            notes[text] = None
    return list(notes)


def _learning_note(algorithm: Algorithm, settings: Any, values: Mapping[str, Any]) -> str | None:
    """Say that a training ends before it learns, or that a framework's profiler ends before that; None if neither is so."""
    begins = max(getattr(settings, "learning_starts", 0), getattr(settings, "random_steps", 0))
    starts = getattr(settings, "learning_starts", 0)
    if settings.total_steps <= starts:
        return (
            f"{algorithm.title} learns from step {starts:,} on (learning_starts), so a training of {settings.total_steps:,} steps learns nothing: "
            "raise total_steps, or lower learning_starts"
        )
    if values.get(KEY) == FRAMEWORK and values.get(FROM, 0) < begins:
        return (
            f"profile: framework looks at the first second only, and {algorithm.title} learns and acts by its policy from step {begins:,} on: set "
            "profile_from to see that"
        )
    return None


def _workload_faults(study: Study, found: list[Algorithm]) -> Iterator[Fault]:
    """Give the faults of the workload's hyperparameters, which must suit every algorithm of the study."""
    axes = {key for path, key, _ in assignments(study) if path[0] != "computed"}
    examples = {"algorithm": f"axis; {suggestion('', algorithms())}", "environment": "axis, such as CartPole-v1"}
    for name, example in examples.items():
        named = getattr(study.workload, name) is not None
        if named and name in axes:
            yield ("workload", name), f"`{name}` is an axis, too: remove one of the two"
        if not named and name not in axes:
            yield ("workload",), f"`{name}` is missing: name it here or as an {example}"
    told: set[str] = set()
    for algorithm in found:
        for name, wrong in fields.faults(algorithm.settings, study.workload.hyperparameters):
            if name in told:
                continue
            told.add(name)
            owners = [owner for owner in found if name in fields.names(owner.settings)]
            if owners and len(found) > 1:
                wrong = (
                    f"{algorithm.title}: {wrong}" if algorithm in owners else _not_of_all(algorithm, owners[0], name)
                )
            yield ("workload", "hyperparameters", name), wrong


def _not_of_all(algorithm: Algorithm, owner: Algorithm, name: str) -> str:
    return (
        f"{algorithm.title} has no hyperparameter {name!r}, but {owner.title} has: set it together with the algorithm, "
        f"with `- {{algorithm: {owner.name}, {name}: ...}}` as a value of the axis `algorithm`"
    )


def _axis_faults(study: Study, found: list[Algorithm]) -> Iterator[Fault]:
    settings = {name for algorithm in found for name in fields.names(algorithm.settings)}
    of_search = KEYS if study.search else ()
    known = {
        "framework",
        "execution",
        "tensorboard",
        "tracking",
        "profile",
        *WINDOW,
        EPISODE_LIMIT,
        *of_search,
        *(name for name in ("algorithm", "environment") if getattr(study.workload, name) is None),
        *RESOURCES,
        *settings,
        *study.workload.placeholders(),
    }
    known |= options_of_study(study)
    if study.computed:
        from hpcrl.spec.computed import names_in

        known |= names_in(study.computed)
    # The algorithm that a value of an axis names beside its settings: defaults and ranges are its own.
    beside = {path[:-1]: algorithms().get(value) for path, key, value in assignments(study) if key == "algorithm"}
    told: set[Key] = set()
    for path, key, value in assignments(study):
        if key == "algorithm":
            if value not in algorithms():
                yield path, f"no algorithm {written(value)}; {suggestion(str(value), algorithms())}"
        elif key == "environment":
            if not isinstance(value, str) and path[0] != "computed":  # that is a fault of its own
                yield path, f"expected the id of a Gymnasium environment, such as CartPole-v1, got {written(value)}"
        elif key not in known:
            at = path if isinstance(path[-1], str) else path[:-1]
            if found and at not in told:
                told.add(at)
                what = "hyperparameter, resource or option" if options_of_study(study) else "hyperparameter or resource"
                unnamed = filter(None, (unnamed_option(environment, key) for environment in study.environment_ids()))
                yield at, next(unnamed, None) or f"no {what} {key!r}; {suggestion(key, known)}"
        elif key == "framework" and value not in frameworks():
            yield path, f"no framework {written(value)}; {suggestion(str(value), frameworks())}"
        elif key == "execution" and value not in modes():
            yield path, f"no execution mode {written(value)}; {suggestion(str(value), modes())}"
        elif key == "tensorboard" and value not in ("none", "during", "after"):
            yield path, f"expected none, during or after, got {written(value)}"
        elif key == "tracking" and value not in TRACKING:
            yield path, f"expected {', '.join(TRACKING[:-1])} or {TRACKING[-1]}, got {written(value)}"
        elif (key == EPISODE_LIMIT and (wrong := episode_limit_fault(value))) or (
            key in settings and (wrong := _axis_fault(beside.get(path[:-1]), found, key, value))
        ):
            yield path, wrong


def _axis_fault(beside: Algorithm | None, found: list[Algorithm], key: str, value: Any) -> str | None:
    """Say what is wrong with a hyperparameter on an axis, for the algorithm that is named beside it or for each that has it."""
    owners = [algorithm for algorithm in found if key in fields.names(algorithm.settings)]
    if beside in owners:
        return fields.fault(beside.settings, key, value)
    for owner in owners:
        if wrong := fields.fault(owner.settings, key, value):
            return f"{owner.title}: {wrong}" if len(owners) > 1 else wrong
    return None


def _combination_faults(study: Study) -> Iterator[Fault]:
    told: set[Key] = set()
    used = study.algorithms()
    owners = {name: owner for owner in used for name in fields.names(owner.settings)} if len(used) > 1 else {}
    keys = (
        "algorithm",
        "environment",
        "framework",
        "execution",
        "parallelism",
        "gpus",
        "nodes",
        "tasks",
        "actors",
        "stepping",
        *sorted({*NOT_FUSED, "unsynchronized", *owners} & study.factors()),
    )
    for values, paths in combinations(study, keys):
        framework, algorithm = frameworks().get(str(values.get("framework"))), study.algorithm_of(values)
        if framework is None:
            continue
        environment = study.environment_id(values)
        named = {
            "algorithm": algorithm or not used,
            "environment": environment or "environment" in values or not any(study.environment_ids()),
        }
        missing = next((name for name, is_named in named.items() if not is_named), None)
        if missing and ("include",) not in told:
            told.add(("include",))
            yield ("include",), f"a cell has no `{missing}`: name it in every cell"
        if algorithm is None or not environment:
            continue
        for key in sorted(set(owners) & set(values) - set(fields.names(algorithm.settings))):
            at = paths[key] if isinstance(paths[key][-1], str) else paths[key][:-1]
            if at not in told:
                told.add(at)
                yield at, _not_of_all(algorithm, owners[key], key)
        given = {**study.workload.hyperparameters, **values}
        options = () if environment in OWN_ENVIRONMENTS else _options(study, values)
        for key, others, wrong in cannot(algorithm, framework, environment, options, given):
            rule = {name: values[name] for name in (*others, key) if name in paths} if key in paths else {}
            shown = ", ".join(f"{name}: {value}" for name, value in rule.items())
            place = (
                ("workload", "hyperparameters", key) if key in study.workload.hyperparameters else ("resources", key)
            )
            path = paths.get(key, place)
            if (*path, shown) not in told:
                told.add((*path, shown))
                yield path, wrong + (f": leave it out with `exclude: [{{{shown}}}]`" if rule else "")


def _settings_faults(study: Study) -> Iterator[Fault]:
    """Give settings that are valid alone, but not together or not for the ranks of a cell. Each setting is named once."""
    given = study.workload.hyperparameters
    names = {name for owner in study.algorithms() for name in fields.names(owner.settings)}
    names |= {EPISODE_LIMIT, *options_of_study(study)}
    told: set[str] = set()
    space = study.search.space if study.search else {}
    keys = ("algorithm", "environment", *sorted(names), "tasks", "parallelism", "gpus", "nodes")
    for values, paths in combinations(study, keys):
        algorithm = study.algorithm_of(values)
        if algorithm is None:
            continue
        own = {key: value for key, value in values.items() if key in fields.names(algorithm.settings)}
        drawn = _lowest(algorithm, space)
        settings = fields.check(algorithm.name, algorithm.settings, {**given, **drawn, **own})
        yield from _actors_faults(settings, values, paths, told)
        ranks = 1
        if values["parallelism"] != "none":
            ranks = values["tasks"] or averaging_ranks(values["gpus"], values["nodes"])
        wrong = algorithm.fault(settings, ranks) or episode_fault(study, algorithm, settings, values)
        side = image_side(study.environment_id(values))
        if wrong is None and side and (small := filters_fault(getattr(settings, "filters", ()), side)):
            wrong = "filters", small
        if wrong and wrong[0] not in told and wrong[0] not in drawn:  # the search checks its own
            told.add(wrong[0])
            name, text = wrong
            place: Key = ("workload", "hyperparameters", name) if name in given else ("workload", "algorithm")
            place = paths.get(name, place if name in given else paths.get("algorithm", place))
            yield place, text if name in place or name in text else f"{name} {text}"


def _lowest(algorithm: Algorithm, space: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lowest or first value of each hyperparameter that a search draws, if it is valid."""
    known = fields.names(algorithm.settings)
    first = {name: values[0] if isinstance(values, tuple) else values.low for name, values in space.items() if values}
    return {
        name: value
        for name, value in first.items()
        if name in known and not fields.fault(algorithm.settings, name, value)
    }


def _actors_faults(settings: Any, values: dict[str, Any], paths: dict[str, Key], told: set[str]) -> Iterator[Fault]:
    """Give resources that a learner and its actors cannot use."""
    if not has_actors(settings):
        return
    ranks = settings.actors + 1
    if values["tasks"] not in (None, ranks) and "tasks" not in told:
        told.add("tasks")
        yield (
            paths.get("tasks", ("resources", "tasks")),
            f"expected {ranks}, the learner and its {count(settings.actors, 'actor')}, got {values['tasks']}: leave it out",
        )
    if values["gpus"] > 1 and "gpus" not in told:
        told.add("gpus")
        yield (
            paths.get("gpus", ("resources", "gpus")),
            f"expected at most 1, which is the learner's (actors use none), got {values['gpus']}",
        )
    elif values["gpus"] and values["nodes"] > 1 and "gpus" not in told:
        told.add("gpus")
        yield (
            paths.get("gpus", paths.get("nodes", ("resources", "gpus"))),
            f"the GPU is the learner's, but a job has as many on each of its {values['nodes']} nodes: set `nodes` to 1 or `gpus` to 0",
        )


def _has_compiled(framework: Framework, environment: str) -> bool:
    """Tell whether a framework has a Gymnasium environment as a compiled program; without a version the newest counts."""
    return environment in framework.environments or any(
        name.startswith(f"{environment}-v") for name in framework.environments
    )


def cannot(
    algorithm: Algorithm,
    framework: Framework,
    environment: str,
    options: tuple[tuple[str, Any], ...],
    values: dict[str, Any],
) -> Iterator[Impossible]:
    execution, parallelism = values["execution"], values["parallelism"]
    yield from _cannot_share_nodes(values)
    if framework.name not in algorithm.frameworks:
        yield "framework", ("algorithm",), f"{algorithm.title} has no framework {written(framework.name)}"
    if "image" not in framework.observations and image_side(environment):
        yield (
            "framework",
            ("environment",),
            f"hpcrl has no convolutions in {framework.title}, and {environment} shows images",
        )
    for key, known in (("execution", framework.modes), ("parallelism", ("none", *framework.parallelism))):
        if values[key] not in known:
            yield (
                key,
                ("framework",),
                f"{framework.name}: {key}: expected one of {', '.join(known)}, got {written(values[key])}",
            )
    if execution == "fused" and execution in framework.modes and not algorithm.fused:
        yield "execution", ("algorithm", "framework"), f"{algorithm.title} has no {execution} mode"
    if (stepping := values.get("stepping", "sync")) not in framework.stepping and execution != "fused":
        ways = ", ".join(framework.stepping)
        yield (
            "stepping",
            ("framework",),
            f"{framework.title}: stepping: expected one of {ways}, got {written(stepping)}",
        )
    fused = [("execution", "fused", framework.modes, framework)] if algorithm.fused else []
    beside = ("stepping", "compiled", framework.stepping, frameworks()[COMPILED_IN])
    for key, value, possible, compiles in (*fused, beside):
        if values.get(key) != value or value not in possible:
            continue
        if ":" in environment:
            if lacks_jax(environment, options):
                module = environment.partition(":")[0]
                yield (
                    key,
                    ("environment", "framework"),
                    f"the module {module} has no `jax_world`: {environment} is not there in JAX",
                )
        elif not _has_compiled(compiles, environment):
            there = ", ".join(compiles.environments)
            yield (
                key,
                ("environment", "framework"),
                f"{compiles.title} has no {environment} as a compiled program, only {there}",
            )
        elif options:
            yield (
                key,
                ("environment", "framework"),
                f"{compiles.title} has {environment} as a compiled program without options",
            )
    own = OWN_ENVIRONMENTS.get(environment)
    if stepping == "arrays" and execution != "fused" and not (own and own.arrays):
        there = ", ".join(name for name, candidate in OWN_ENVIRONMENTS.items() if candidate.arrays)
        yield "stepping", ("environment",), f"there is no {environment} as NumPy arrays, only {there}"
    if execution in framework.one_process and parallelism != "none":
        yield "parallelism", ("execution",), f"{execution} supports a single process only"
    if execution == "fused" and stepping not in ("sync", "compiled"):
        yield (
            "stepping",
            ("execution",),
            f"fused has the environment in the learner's program: {stepping} does not apply",
        )
    if execution == "fused" and values.get("unsynchronized"):
        yield "unsynchronized", ("execution",), "fused has the whole loop in one program: unsynchronized does not apply"
    if execution == "fused" and issubclass(algorithm.settings, OffPolicySettings):
        for key in (key for key, value in NOT_FUSED.items() if values.get(key, value) != value):
            yield key, ("execution",), f"fused has the environment in the learner's program: {key} does not apply"
    if values["gpus"] and "cuda" not in framework.devices:
        yield "gpus", ("framework",), f"{framework.title} supports the CPU only"


def _cannot_share_nodes(values: dict[str, Any]) -> Iterator[Impossible]:
    """Give resources with which ranks would be idle, or nodes."""
    nodes, tasks = values["nodes"], values["tasks"]
    if (ranks := ranks_with_actors(values)) is not None:
        if nodes > ranks:
            yield "nodes", ("topology", "actors"), f"expected at most {ranks}, the learner and its actors, got {nodes}"
    elif values["parallelism"] == "none":
        key = "tasks" if (tasks or 1) > 1 else "nodes"
        if (values[key] or 1) > 1:
            yield (
                key,
                ("parallelism",),
                f"expected 1, because a training without `parallelism` is one process on one node, got {values[key]}",
            )
    elif (ranks := tasks or averaging_ranks(values["gpus"], nodes)) % nodes:
        yield (
            "tasks" if tasks else "nodes",
            ("parallelism", "gpus", "nodes") if tasks else ("parallelism", "gpus"),
            f"{nodes} nodes cannot share {count(ranks, 'rank')} evenly: expected a multiple of the nodes",
        )
