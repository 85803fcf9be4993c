"""Check `profile` of a study: the profilers' names, and whether they can look at its workload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hpcrl.catalogue.registry import frameworks
from hpcrl.errors import suggestion, written
from hpcrl.profilers import FRAMEWORK, KEY, NAMES, NONE, PROFILERS, WINDOW, command_fault
from hpcrl.spec.checks import Fault, assignments, combinations
from hpcrl.spec.explain import Key
from hpcrl.spec.surroundings import surroundings_of

if TYPE_CHECKING:
    from hpcrl.spec.study import Study


def profile_faults(study: Study) -> Iterator[Fault]:
    """Give the faults of the study's `profile` and of axes of that name, each once."""
    given = [(path, value) for path, key, value in assignments(study) if key == KEY and path[0] != "computed"]
    if study.profile != NONE:
        given.append(((KEY,), study.profile))
    told: set[Any] = set()
    for path, value in given:
        if value == NONE or (path, str(value)) in told:
            continue
        told.add((path, str(value)))
        if wrong := _fault(study, value):
            yield path, wrong
    yield from _framework_faults(study)
    yield from _window_faults(study)
    if KEY in study.factors() and KEY in study.workload.placeholders():
        at: Key = ("workload",)
        yield at, f"{{{KEY}}} is the profiler, which looks at a program from outside: give your own axis another name"


def _framework_faults(study: Study) -> Iterator[Fault]:
    """Give the frameworks that have no profiler of their own, each once."""
    told: set[str] = set()
    for values, paths in combinations(study, (KEY, "framework")) if study.workload.trains else ():
        framework = frameworks().get(str(values.get("framework")))
        if values.get(KEY) != FRAMEWORK or framework is None or framework.has_profiler or framework.name in told:
            continue
        told.add(framework.name)
        rule = (
            f": leave it out with `exclude: [{{framework: {framework.name}, {KEY}: {FRAMEWORK}}}]`"
            if KEY in paths
            else ""
        )
        yield paths.get(KEY, (KEY,)), f"{framework.title} has no profiler of its own: use cprofile{rule}"


def _window_faults(study: Study) -> Iterator[Fault]:
    """Give the faults of the steps at which profilers begin and end, each once."""
    set_at: dict[str, tuple[Key, Any]] = {
        name: ((name,), getattr(study, name)) for name in WINDOW if getattr(study, name)
    }
    for path, key, value in assignments(study):
        if key in WINDOW and (study.workload.trains or key in set_at):
            set_at[key] = path, value
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                yield path, f"expected a whole number of at least 0, got {written(value)}"
                return
    if not set_at:
        return
    path, _ = next(iter(set_at.values()))
    if not study.workload.trains:
        yield (
            path,
            "it counts environment steps of built-in training, and a command has none that hpcrl sees: remove it",
        )
    elif study.profile == NONE and not any(key == KEY for _, key, _ in assignments(study)):
        yield path, "there is no profiler: name one, as in `profile: cprofile`"
    else:
        for values, paths in combinations(study, (KEY, *WINDOW, "execution", "framework")):
            steps = next((name for name in WINDOW if values.get(name)), None)
            if steps and values.get("execution") == "fused" and values.get(KEY, NONE) != NONE:
                at = paths.get(steps, paths.get("execution", path))
                yield (
                    at,
                    f"{steps}: a fused mode has no Python between its steps: profile the whole training, or leave fused out",
                )
                return


def _fault(study: Study, value: Any) -> str | None:
    """Say what is wrong with one profiler; None if it can look at the study's cells."""
    if value not in PROFILERS:
        hint = suggestion(str(value), NAMES)
        names = f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"
        return f"expected {names}, got {written(value)}" + (f"; {hint}" if hint.startswith("did you") else "")
    if study.search:
        return "the trials of a search are compared by what a profiler changes: remove `profile`, and profile the best configuration in a study of its own"
    if value == "py-spy" and (how := surroundings_of(study.environment)) and how.container:
        return "py-spy cannot look into a container: use cprofile"
    words = study.workload.command
    return command_fault(PROFILERS[value], words) if words else None
