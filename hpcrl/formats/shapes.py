"""Check the types of untrusted values, and show wrong values in messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

TEXT, NUMBER, COUNT, TRUTH, FACTS = "text", "a number", "a whole number", "true or false", "a mapping"
_EXACTLY = {TEXT: str, NUMBER: float, TRUTH: bool, FACTS: dict}
MAX_WORDS = 256 * 1024  # characters of one text: a reason, a name


def is_kind(kind: str, value: Any) -> bool:
    """Tell whether a value is of one of the kinds above. Numbers are smaller than 2^62, counts also not negative."""
    if kind == COUNT:
        return type(value) is int and 0 <= value < 2**62
    if kind == NUMBER:
        return type(value) is float or (type(value) is int and abs(value) < 2**62)
    return type(value) is _EXACTLY[kind]


def first_wrong(payload: Mapping[str, Any], kinds: Mapping[str, str], required: bool = False) -> str | None:
    """Return what is wrong with the first value of another kind, as in ``'rank': expected a whole number, got 'x'``.

    Args:
        required: whether a missing value or None is wrong too.
    """
    for name, kind in kinds.items():
        value = payload.get(name)
        if value is None and not required:
            continue
        if type(value) is not _EXACTLY.get(kind) and not is_kind(kind, value):
            return f"{name!r}: expected {kind}, got {shown(value)!r}"
        if isinstance(value, str) and len(value) > MAX_WORDS:
            return f"{name!r}: expected at most {MAX_WORDS} characters, got {len(value)}"
    return None


def shown(value: Any) -> str:
    """Return the beginning of any value as text."""
    try:
        return str(value)[:60]
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists in lists
        return f"a {type(value).__name__}"


def first_wrong_field(made: Any) -> str | None:
    """Return the first field of a dataclass whose value does not have its annotated type, as ``'name': got 'value'``."""
    hints = _hints(made.__class__)
    for field in fields(made):
        value = getattr(made, field.name)
        if not _is_type(value, hints[field.name]):
            return f"{field.name!r}: got {shown(value)!r}, which has a wrong type"
    return None


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_type(value: Any, hint: Any) -> bool:
    """Check types that a JSON file can hold: plain ones, lists, mappings with text as keys, and unions of them."""
    if hint is Any or type(value) is hint:
        return True
    if hint is float:
        return type(value) is int
    if isinstance(hint, UnionType):
        return any(_is_type(value, member) for member in get_args(hint))
    if hint in (None, NoneType):
        return value is None
    if (origin := get_origin(hint)) is None:
        return type(value) is not bool and isinstance(value, hint)
    if not isinstance(value, origin):
        return False
    if origin is list:
        (inner,) = get_args(hint)
        return inner is Any or all(_is_type(entry, inner) for entry in value)
    _, inner = get_args(hint)
    return inner is Any or all(_is_type(entry, inner) for entry in value.values())
