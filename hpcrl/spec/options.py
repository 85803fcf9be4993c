"""Check the options of a training study's environment: those of the workload, and axes of their names."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from hpcrl.catalogue import fields
from hpcrl.catalogue.environments import OWN_ENVIRONMENTS, option_names
from hpcrl.errors import UsageError, suggestion, written
from hpcrl.spec.checks import Fault, combinations
from hpcrl.spec.explain import Key
from hpcrl.spec.gym import episode_limit, is_known_here

if TYPE_CHECKING:
    from hpcrl.catalogue.registry import Algorithm
    from hpcrl.spec.study import Study

EPISODE_LIMIT = "max_episode_steps"  # of the workload, or an axis
_KINDS: tuple[tuple[Any, str], ...] = ((bool, "true or false"), ((int, float), "a number"), (str, "a text"))


def options_of_study(study: Study) -> set[str]:
    """Return the names of options that axes may have. A hyperparameter or resource of the same name goes before."""
    return {name for environment in study.environment_ids() for name in _names(study, environment)}


def _names(study: Study, environment: str) -> set[str]:
    return option_names(environment, study.workload.environment_options or {})


def option_faults(study: Study) -> Iterator[Fault]:
    """Give unknown options and values of the wrong type, and options that are not possible together."""
    given = study.workload.environment_options or {}
    faults: dict[Key, str] = {}
    for name, value in given.items():
        if wrong := fault_of_option(study, study.environment_ids(), name, value):
            faults["workload", "environment_options", name] = wrong
    axes = options_of_study(study) - {
        name for algorithm in study.algorithms() for name in fields.names(algorithm.settings)
    }
    points = list(combinations(study, ("environment", *sorted(axes))))
    for values, paths in points:
        for name in sorted(axes & set(paths)):
            if wrong := fault_of_option(study, [study.environment_id(values)], name, values[name]):
                is_there = name in _names(study, study.environment_id(values))
                faults.setdefault(
                    paths[name] if is_there or isinstance(paths[name][-1], str) else paths[name][:-1], wrong
                )
    yield from faults.items()
    if faults:
        return
    told = set()
    for values, paths in points:
        environment = study.environment_id(values)
        if (own := OWN_ENVIRONMENTS.get(environment)) is None:
            continue
        try:
            own.with_options(environment, options_at(study, values))
        except UsageError as error:
            name, _, text = str(error).removeprefix(f"{environment}: ").partition(": ")
            if name not in told:
                told.add(name)
                first = next(iter(given), name)
                yield paths.get(name, ("workload", "environment_options", name if name in given else first)), text


def options_at(study: Study, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment's options at a point of the matrix."""
    names = _names(study, study.environment_id(values))
    return {**(study.workload.environment_options or {}), **{key: values[key] for key in names & set(values)}}


def unnamed_option(environment: str, key: str) -> str | None:
    """Say how an axis becomes an option of a Gymnasium environment; None if it has no such option, or if that is not known here."""
    if environment in OWN_ENVIRONMENTS or key not in (_defaults(environment) or {}):
        return None
    return f"is an option of {environment}: name its usual value in `environment_options` of the workload, too"


def episode_limit_fault(value: Any) -> str | None:
    """Say what is wrong with a maximum number of steps of an episode; None if it is valid."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return None
    return f"expected a whole number of at least 1, got {written(value)}"


def longest_episode(study: Study, values: Mapping[str, Any]) -> int | None:
    """Return the maximum steps of an episode at a point of the matrix; None if there is no maximum, or if it is not known here."""
    given = values.get(EPISODE_LIMIT) or study.workload.max_episode_steps
    return episode_limit(study.environment_id(values), options_at(study, values), given)


def episode_fault(
    study: Study, algorithm: Algorithm, settings: Any, values: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Return the setting that does not suit the longest episode at a point of the matrix, and why; None if all do."""
    limit = longest_episode(study, values)
    return algorithm.episode_fault(settings, limit) if limit else None


def fault_of_option(study: Study, environments: Iterable[str], name: str, value: Any) -> str | None:
    """Say what is wrong with an option of some environments of a study, of which another one may have it; None if nothing is."""
    for environment in environments:
        owner = next((other for other in study.environment_ids() if name in _names(study, other)), environment)
        if name not in _names(study, environment):
            return (
                f"{environment} has no option {name!r}, but {owner} has: set it together with the environment, with "
                f"`- {{environment: {owner}, {name}: ...}}` as a value of the axis `environment`"
            )
        if wrong := _option_fault(environment, name, value):
            return wrong
    return None


def _option_fault(environment: str, name: str, value: Any) -> str | None:
    """Say what is wrong with an environment's option; None if it is valid, or if that is not known here."""
    if own := OWN_ENVIRONMENTS.get(environment):
        if own.options is None:
            return f"{environment} has no options"
        return next((wrong for _, wrong in fields.faults(own.options, {name: value}, "option")), None)
    defaults = _defaults(environment)
    if defaults is None:
        return None
    if name not in defaults:
        return (
            f"no option {name!r} of {environment}; {suggestion(name, defaults)}"
            if defaults
            else f"{environment} has no options"
        )
    default = defaults[name]
    expected = next(((kind, words) for kind, words in _KINDS if isinstance(default, kind)), None)
    if expected is None or (isinstance(value, expected[0]) and isinstance(value, bool) == isinstance(default, bool)):
        return None
    return f"expected {expected[1]}, got {written(value)} (default {written(default)})"


@cache
def _defaults(environment: str) -> dict[str, Any] | None:
    """Return the options of a Gymnasium environment with their defaults; None if they are not known here."""
    if not is_known_here(environment):
        return None
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    try:
        entry = gymnasium.spec(environment).entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        parameters = inspect.signature(creator).parameters.values() if creator else ()
    except Exception:  # a package is missing here, or there is no such environment, which is a fault of its own
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name: parameter.default for parameter in parameters if parameter.name != "render_mode"}
