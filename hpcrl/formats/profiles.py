"""What a profile of one rank says, small enough for a record: its functions, and its call tree as collapsed stacks.

The profiler's own file lies in ``PLAN/profiles/``, named as the record is. Nothing of hpcrl opens it outside of its cell: pstats
files are read by marshal, which must not read a stranger's file. The summary is plain text, written inside the cell:

functions   one line each: name, own value, value with callees, calls (empty if they are not counted), separated by tabs
stacks      one line each: names of the frames from the outermost on, separated by semicolons, a space, the own value
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

from hpcrl.catalogue.registry import frameworks
from hpcrl.errors import UsageError
from hpcrl.formats.plan import Cell, Plan
from hpcrl.profilers import FRAMEWORK, KEY, MOST_OWN, NONE, PROFILERS, command_fault, how_to_add
from hpcrl.searches import ROLE

PROFILES = "profiles"
MOST_FUNCTIONS = 2 * MOST_OWN
MOST_FRAMES = 400  # of the tree
LEAST_SHARE = 0.001  # of the whole: smaller frames are part of their caller
MOST_DEPTH = 64
_LONGEST = 120  # characters of a name
_ODD = re.compile(r"[;\t\r\n\x00-\x1f]+")
# No other function of these files has one of these names: the time of one must not contain that of another.
_UPDATE = re.compile(r"(?:update|_burst) \(hpcrl/rl/frameworks/\w+/core\.py:\d+\)")


@dataclass(frozen=True)
class Function:
    """A function of a profile: its own value, that with everything it calls, and its calls (None: not counted)."""

    name: str
    own: float
    total: float
    calls: int | None = None


@dataclass
class Frame:
    """A frame of a call tree; `value` includes its callees."""

    name: str
    value: float = 0.0
    callees: dict[str, Frame] = field(default_factory=dict)

    @property
    def own(self) -> float:
        return max(0.0, self.value - sum(callee.value for callee in self.callees.values()))

    def add(self, names: Iterable[str], value: float) -> None:
        """Add a stack below this frame, the outermost name first."""
        frame = self
        frame.value += value
        for name in names:
            frame = frame.callees.setdefault(name, Frame(name))
            frame.value += value


@dataclass(frozen=True)
class Profile:
    """The profile of one rank, as its record has it.

    Args:
        file: its name in the plan's ``profiles/``; None if there is none, and `note` says why.
        size: bytes of the file.
        seconds: what stopping the profiler and writing its file took. It is no part of the time of the training.
        unit: of all values: s, samples, B.
        total: of the whole profile.
    """

    profiler: str
    file: str | None = None
    size: int | None = None
    note: str | None = None
    seconds: float = 0.0
    unit: str = "s"
    total: float | None = None
    functions: str = ""
    stacks: str = ""

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


def check_profiler(profiler: str, plan: Plan, cell: Cell, environment: Path | None) -> None:
    """Check that a profiler can look at a cell of a plan, whose workload runs in an environment (None: not known here).

    Raises:
        UsageError: it cannot; the message says why.
    """
    if ROLE in cell.config:
        raise UsageError(
            f"--profile: cell {cell.id} is part of a search, which would count it as a trial: profile its configuration in a study of its own"
        )
    framework = frameworks().get(str(cell.config.get("framework")))
    if profiler == FRAMEWORK and framework and not framework.has_profiler:
        raise UsageError(f"--profile: {framework.title} has no profiler of its own: use cprofile")
    if profiler == "py-spy" and (how := plan.study.surroundings) and how.container:
        raise UsageError("--profile: py-spy cannot look into a container: use cprofile")
    package = PROFILERS[profiler].package
    if package and environment is not None and not (environment / "bin" / package).exists():
        raise UsageError(f"--profile: {environment}: has no {package}: {how_to_add(package)}")
    words = plan.workload.get("command")
    if words and (wrong := command_fault(PROFILERS[profiler], words)):
        raise UsageError(f"--profile: {wrong}")


def check_window(profiler: str | None, window: Mapping[str, int | None], plan: Plan, cell: Cell) -> None:
    """Check that a profiler can begin and end at environment steps of a cell; None: at the training's own begin and end.

    Args:
        profiler: None: the cell's own, if it has one.

    Raises:
        UsageError: it cannot; the message says why.
    """
    name = next((name for name, steps in window.items() if steps is not None), None)
    if name is None:
        return
    option = f"--{name.replace('_', '-')}"
    if profiler is None and cell.config.get(KEY, NONE) == NONE:
        raise UsageError(f"{option}: there is no profiler: name one with --profile")
    if plan.runs_command:
        raise UsageError(
            f"{option}: counts environment steps of built-in training, and a command has none that hpcrl sees: remove it"
        )
    if cell.config.get("execution") == "fused":
        raise UsageError(f"{option}: a fused mode has no Python between its steps: profile the whole training")


def file_name(record: str, suffix: str) -> str:
    """Return the name of a profile's file from that of its record: the same with another suffix."""
    return record.rpartition(".")[0] + suffix


def plain_name(name: str) -> str:
    """Return a name without the characters that separate names, and not too long."""
    name = _ODD.sub(" ", name).strip() or "?"
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."


def place_of(function: str, path: str, line: int) -> str:
    """Name a function with its file, as ``train (loops/on_policy.py:12)``; a built-in function has no file."""
    if path in ("", "~"):
        return plain_name(function)
    for mark in ("site-packages/", "dist-packages/", ".zip/"):
        path = path.rpartition(mark)[2]
    if "/hpcrl/" in path:
        path = "hpcrl/" + path.rpartition("/hpcrl/")[2]
    if path.startswith("/"):
        path = re.sub(r".*/lib/python3\.\d+/", "", path)
        path = "/".join(path.split("/")[-2:]) if path.startswith("/") else path
    return plain_name(f"{function} ({path}:{line})" if line else f"{function} ({path})")


def is_update(name: str) -> bool:
    """Tell whether a function, as :func:`place_of` names it, is a learner's update: one gradient step, or those of an interval."""
    return _UPDATE.fullmatch(name) is not None


def functions_text(functions: Iterable[Function]) -> str:
    """Write the functions with the largest own values, those with the largest values with callees, and the learner's updates."""
    known = list(functions)
    most = MOST_OWN
    kept = sorted(known, key=lambda function: -function.own)[:most]
    by_total = sorted(known, key=lambda function: -function.total)
    kept += [function for function in by_total[:most] if function not in kept]
    kept += [function for function in by_total[most:] if is_update(function.name) and function not in kept]
    return "\n".join(
        f"{plain_name(function.name)}\t{function.own:.6g}\t{function.total:.6g}\t{'' if function.calls is None else function.calls}"
        for function in kept
    )


def read_functions(text: str) -> list[Function]:
    """Read what :func:`functions_text` writes; lines of another form are left out, because a dataset may be a stranger's."""
    functions = []
    for line in text.split("\n")[: 2 * MOST_FUNCTIONS]:
        parts = line.split("\t")
        if len(parts) != 4 or (own := _number(parts[1])) is None or (total := _number(parts[2])) is None:
            continue
        calls = int(parts[3]) if parts[3].isdecimal() and len(parts[3]) < 18 else None
        functions.append(Function(plain_name(parts[0]), own, total, calls))
    return functions


def stacks_text(root: Frame) -> str:
    """Write the largest frames of a tree. What smaller frames have is their caller's own."""
    kept = pruned(root)
    return "\n".join(f"{';'.join(names)} {value:.6g}" for names, value in _stacks(kept, ()))


def read_stacks(text: str) -> Frame:
    """Read collapsed stacks, :func:`stacks_text`'s and those of other programs; lines of another form are left out."""
    root = Frame("all")
    for line in text.split("\n"):
        names, _, number = line.rstrip("\r").rpartition(" ")
        value = _number(number)
        if names and value is not None and value > 0:
            root.add([plain_name(name) for name in names.split(";")[:MOST_DEPTH]], value)
    return root


def pruned(root: Frame, most: int = MOST_FRAMES) -> Frame:
    """Return the tree with its largest frames only: at most so many, none below :data:`LEAST_SHARE` of the whole."""
    least = LEAST_SHARE * root.value
    whole = Frame(root.name, root.value)
    order = count()  # decides between equal values
    waiting = [(-branch.value, next(order), 1, branch, whole) for branch in root.callees.values()]
    heapify(waiting)
    kept = 0
    while waiting and kept < most:
        negative, _, depth, frame, caller = heappop(waiting)
        if -negative < least:
            break
        kept += 1
        copied = caller.callees[frame.name] = Frame(frame.name, frame.value)
        for callee in frame.callees.values() if depth < MOST_DEPTH else ():
            heappush(waiting, (-callee.value, next(order), depth + 1, callee, copied))
    return whole


def functions_of(root: Frame) -> list[Function]:
    """Return the functions of a tree of samples. A recursive function's value counts once."""
    own: dict[str, float] = {}
    total: dict[str, float] = {}

    def visit(frame: Frame, above: frozenset[str]) -> None:
        own[frame.name] = own.get(frame.name, 0.0) + frame.own
        if frame.name not in above:
            total[frame.name] = total.get(frame.name, 0.0) + frame.value
        for callee in frame.callees.values():
            visit(callee, above | {frame.name})

    for branch in root.callees.values():
        visit(branch, frozenset())
    return [Function(name, own[name], total.get(name, own[name])) for name in own]


def called_tree(
    roots: Mapping[str, float], calls: Mapping[str, Mapping[str, float]], totals: Mapping[str, float]
) -> Frame:
    """Return the tree of a profile that knows only who called whom, as cProfile.

    A function's time is divided among its callers by what each call took, and the callees' below each of them in the same
    proportion (as snakeviz and gprof do): two callers of one function look alike below it.

    Args:
        roots: functions that nobody called, with their seconds.
        calls: function -> callee -> seconds of these calls; totals: seconds of each function with its callees.
    """
    whole = Frame("all", sum(roots.values()))
    least = LEAST_SHARE * whole.value

    def fill(frame: Frame, above: frozenset[str]) -> None:
        share = frame.value / totals[frame.name] if totals.get(frame.name) else 0.0
        room = frame.value  # rounding must not make callees larger than their caller
        for name, seconds in sorted(calls.get(frame.name, {}).items(), key=lambda item: -item[1]):
            value = min(seconds * share, room)
            if name in above or value < least or len(above) >= MOST_DEPTH:  # a recursive call is part of its function
                continue
            room -= value
            frame.callees[name] = Frame(name, value)
            fill(frame.callees[name], above | {name})

    for name, seconds in roots.items():
        if seconds >= least:
            whole.callees[name] = Frame(name, seconds)
            fill(whole.callees[name], frozenset({name}))
    return whole


def _stacks(frame: Frame, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    for callee in frame.callees.values():
        names = (*above, plain_name(callee.name))
        if callee.own > 0:
            yield names, callee.own
        yield from _stacks(callee, names)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e300 else None
