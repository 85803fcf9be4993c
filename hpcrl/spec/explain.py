"""Translate pydantic's faults into hpcrl's words; and faults that carry their place below a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hpcrl.errors import suggestion, written

Key = tuple[str | int, ...]
# Type of pydantic's fault -> the expected value; {name} is a value of the fault's context.
_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "greater_than_equal": "a number of at least {ge}",
    "greater_than": "a number greater than {gt}",
    "less_than_equal": "a number of at most {le}",
    "less_than": "a number less than {lt}",
    "too_short": "at least {min_length} values",
    "too_long": "at most {max_length} values",
    "string_too_short": "a text of at least {min_length} characters",
    "string_too_long": "a text of at most {max_length} characters",
    "literal_error": "{expected}",
    "enum": "{expected}",
}
# Patterns in words.
_PATTERNS = {
    r"^[^\s\"'$`\\@]+@[^\s\"'$`\\@]+$": "an e-mail address such as me@example.org",
    r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$": "a name of letters, digits, _ . + and -, with a letter or digit first",
    r"^3\.\d+$": "a Python version such as 3.11, in quotes",
    r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[a-z0-9,_-]+\])?={2,3}[A-Za-z0-9.+!*_-]+( ?; ?[^;\n]+)?$": "an exact pin such as torch==2.9.1",
    r"^[A-Z][A-Z0-9_]*$": "the name of a variable in capital letters",
}


# A fault of one kind of value, as :func:`in_words` writes it.
_ONE = re.compile(r"expected (.*), (got [^,;]*)(; .*)?")


class Faults(ValueError):
    """Faults of a model's values, each with its path below the model."""

    def __init__(self, faults: Sequence[tuple[Key, str]]) -> None:
        self.faults = list(faults)
        super().__init__("; ".join(f"{dotted(path)}: {text}" if path else text for path, text in self.faults))


def dotted(path: Key) -> str:
    return ".".join(str(part) for part in path)


def in_words(fault: Mapping[str, Any]) -> str:
    """Return one fault of pydantic's as the end of a sentence: expected X, got Y."""
    kind, context = fault["type"], fault.get("ctx") or {}
    if kind in ("value_error", "assertion_error"):
        return str(
            fault["msg"].split(", ", 1)[-1] if fault["msg"].startswith(("Value error", "Assertion")) else fault["msg"]
        )
    if kind == "none_required":
        return f"expected nothing, {_given(fault)}"
    if kind == "string_pattern_mismatch":
        expected = _PATTERNS.get(context["pattern"], f"a text that matches {context['pattern']}")
    elif kind in _EXPECTED:
        expected = _EXPECTED[kind].format(**context)
    else:
        phrase = re.sub(r"^Input should be (a valid )?", "", fault["msg"])
        expected = phrase[:1].lower() + phrase[1:]
    text = f"expected {expected}, {_given(fault)}"
    if kind == "string_type" and isinstance(fault.get("input"), int | float):
        text += "; put it in quotes"
    if kind in ("list_type", "tuple_type") and isinstance(fault.get("input"), str):
        text += "; put it in brackets"
    if kind == "bool_type" and _are_whole(fault.get("input")):  # only values of axes may be texts, numbers or flags
        text += f"; write it as a text: '{'x'.join(map(str, fault['input']))}'"
    if kind in ("literal_error", "enum") and isinstance(fault.get("input"), str):
        names = re.findall(r"'([^']*)'", context["expected"])
        hint = suggestion(fault["input"], names)
        text += f"; {hint}" if hint.startswith("did you") else ""
    return text


def _are_whole(given: object) -> bool:
    return isinstance(given, list | tuple) and bool(given) and all(type(value) is int for value in given)


def as_one(texts: Sequence[str]) -> list[str]:
    """Join the faults of one value that was tried as several kinds, so that the value has one fault."""
    matches = [_ONE.fullmatch(text) for text in texts]
    expected = [match[1] for match in matches if match]
    if len(expected) < 2 or len({match[2] for match in matches if match}) > 1:
        return list(texts)
    kinds = list(dict.fromkeys(expected))
    given = next(match[2] for match in matches if match)
    words = f"{', '.join(kinds[:-1])} or {kinds[-1].removeprefix('expected ')}" if len(kinds) > 1 else kinds[0]
    hint = next((match[3] for match in matches if match and match[3]), "")
    return [
        f"expected {words}, {given}{hint}",
        *(text for text, match in zip(texts, matches, strict=True) if not match),
    ]


def _given(fault: Mapping[str, Any]) -> str:
    given = fault.get("input")
    if isinstance(given, list | tuple):
        return "got a list" if given else "got an empty list"
    return f"got {written(given)}"
