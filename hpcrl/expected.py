"""The expected value of a study: ``{value: 25000, within: 5 %}``, ``{at_least: X}``, ``{at_most: Y}``.

The plan checks a study with it, and a cell judges its values by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PERCENT = re.compile(r"\s*([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*%\s*")


def tolerance(within: float | str, value: float) -> float | None:
    """Return the maximum distance from a value: a number is in the value's unit, ``5 %`` is a share of it; None: neither."""
    if isinstance(within, str):
        match = _PERCENT.fullmatch(within)
        return abs(value) * float(match[1]) / 100 if match else None
    return float(within) if within >= 0 else None


def unexpected(name: str, expected: Mapping[str, float | str], got: float | None) -> str | None:
    """Say in one sentence that a value is not as expected; None if it is.

    Args:
        expected: the numbers `value` and `within`, or `at_least`, `at_most` or both.
        got: the last reported value; None if there is none.
    """
    wanted = _in_words(expected)
    if got is None:
        return f"{name}: expected {wanted}, got no value"
    if got != got:
        return f"{name}: expected {wanted}, got not a number"
    low, high = expected.get("at_least"), expected.get("at_most")
    if "value" in expected:
        middle = float(expected["value"])
        room = tolerance(expected["within"], middle) or 0.0
        low, high = middle - room, middle + room
    if (low is None or got >= float(low)) and (high is None or got <= float(high)):
        return None
    return f"{name}: expected {wanted}, got {_shown(got)}"


def _in_words(expected: Mapping[str, float | str]) -> str:
    if "value" in expected:
        within = expected["within"]
        room = " ".join(within.replace("%", " %").split()) if isinstance(within, str) else _shown(within)
        return f"{_shown(float(expected['value']))} within {room}"
    bounds = {"at_least": "at least", "at_most": "at most"}
    return " and ".join(f"{words} {_shown(float(expected[key]))}" for key, words in bounds.items() if key in expected)


def _shown(number: float) -> str:
    return f"{number:.10g}"
