"""cProfile of the standard library: each call of each function, in the main thread of each rank.

It costs time for each call, so that Python code looks slower than it is, and compiled code does not.
"""

from __future__ import annotations

import cProfile
import marshal
from pathlib import Path
from typing import Any

from hpcrl.formats.profiles import Function, called_tree, place_of
from hpcrl.run.profilers.interface import Found
from hpcrl.run.profilers.python_program import under

_FILE = "profile.pstats"
_OWN = "_lsprof.Profiler"  # of its own methods
_FORMAT = 4  # of marshal: every Python since 3.4 reads it

Key = tuple[str, int, str]  # file, line, function
# Calls that are not recursive, calls, own seconds, seconds with callees; callers, each with calls and seconds of these calls.
Stats = dict[Key, tuple[int, int, float, float, dict[Key, tuple[int, int, float, float]]]]


class Tool:
    """Profiles with cProfile."""

    def __init__(self, framework: str | None = None) -> None:
        self._profile = cProfile.Profile()

    def start(self, scratch: Path) -> None:
        self._profile.enable()

    def look(self) -> bool:
        return False

    def stop(self) -> None:
        self._profile.disable()

    def abandon(self) -> None:
        self._profile.disable()

    def write(self, scratch: Path) -> Found:
        self._profile.create_stats()
        stats: Any = self._profile.stats
        file = scratch / _FILE
        file.write_bytes(marshal.dumps(stats, _FORMAT))
        return _found(file, stats)

    def wrapped(self, words: list[str], scratch: Path) -> list[str]:
        return under("cprofile", words, scratch, scratch / _FILE)

    def read(self, scratch: Path) -> Found | None:
        file = scratch / _FILE
        # The command of this cell wrote it just now: it may do here whatever the command may.
        return _found(file, marshal.loads(file.read_bytes())) if file.exists() else None


def _found(file: Path, stats: Stats) -> Found:
    """Sum up what cProfile counted, by the displayed names of the functions."""
    names = {key: place_of(key[2], key[0], key[1]) for key in stats if _OWN not in key[2]}
    sums: dict[str, list[Any]] = {}
    roots: dict[str, float] = {}
    calls: dict[str, dict[str, float]] = {}
    for key, name in names.items():
        primitive, count, own, total, callers = stats[key]
        known = sums.setdefault(name, [0.0, 0.0, 0])
        sums[name] = [known[0] + own, known[1] + total, known[2] + count]
        if (outside := count - sum(edge[0] for edge in callers.values())) > 0:
            # Called from where the profiler began. If only these calls are not recursive, they have all of the time.
            seconds = total if primitive <= outside else total - sum(edge[3] for edge in callers.values())
            roots[name] = roots.get(name, 0.0) + max(0.0, seconds)
        for caller, edge in callers.items():
            if caller in names:
                callees = calls.setdefault(names[caller], {})
                callees[name] = callees.get(name, 0.0) + edge[3]
    functions = [Function(name, *numbers) for name, numbers in sums.items()]
    tree = called_tree(roots, calls, {function.name: function.total for function in functions})
    return Found(file, sum(function.own for function in functions), functions, tree)
