"""Regular expressions that read numbers from a command's standard output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hpcrl.spec.explain import Key
from hpcrl.spec.quiet import without_warnings

MOST_PATTERNS = 50
# The other keys of an entry of reported values.
_RESERVED = ("step", "time")


def pattern_faults(patterns: Mapping[str, str]) -> Iterator[tuple[Key, str]]:
    """Give the faults of ``{name: pattern}``, each with the name as its place."""
    if not patterns:
        yield (), "expected at least one NAME: 'PATTERN'"
    if len(patterns) > MOST_PATTERNS:
        yield (), f"expected at most {MOST_PATTERNS} patterns, got {len(patterns)}"
    for name, pattern in patterns.items():
        if not name or name in _RESERVED:
            yield (name,), f"{name!r} is not allowed as the name of a value: choose another name"
        elif wrong := _fault(pattern):
            yield (name,), wrong


def _fault(pattern: str) -> str | None:
    try:
        with without_warnings():
            compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"{pattern!r} is not a regular expression: {error}"
    of_values = compiled.groups - ("step" in compiled.groupindex)
    if of_values == 1:
        return None
    got = "none" if of_values == 0 else str(of_values)
    return f"expected one group ( ) around the number, got {got}: write other groups as (?: ), and the group of the step as (?P<step> )"
