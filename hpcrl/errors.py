"""Errors as the user sees them.

HpcrlError          exit code 1: the request was valid, but it failed
└── UsageError      exit code 2: the request is wrong and must be changed
    └── SpecError   exit code 2: one or more faults in a file that somebody wrote, all listed at once

Every message is one sentence: what happened, where, and what to do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence


class HpcrlError(Exception):
    """The request was valid, but something failed."""

    exit_code = 1


class UsageError(HpcrlError):
    """The request is wrong, and the user must change it."""

    exit_code = 2


class SpecError(UsageError):
    """Faults in a profile, study, environment or template, each with its place."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


# Control characters except tab and newline; marks that change the direction of text; lone surrogates.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)


_MOST_WRITTEN = 200  # characters of a value in a message


def printable(text: str) -> str:
    """Show the characters of a text that a terminal would obey as escapes: ``\\x1b``, ``\\u202e``.

    Texts of a study, a record or a file's name may contain them. JSON stays JSON of the same value.
    """
    return _UNPRINTABLE.sub(_escape, text) if _UNPRINTABLE.search(text) else text


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Say which known name is nearest to a wrong one, and which there are, as the end of a sentence."""
    names = sorted(known)
    if close := difflib.get_close_matches(name, names, n=3, cutoff=0.55):
        # Two letters that changed places are the likeliest slip: `plna` is `plan`, not `play`.
        return f"did you mean {min(close, key=lambda candidate: sorted(candidate) != sorted(name))!r}?"
    if not names:
        return "there are none"
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"there are: {shown}"


def written(value: object) -> str:
    """Write a value as a person writes it in YAML: ``true``, ``'x'``, ``[1, 2]``; a mapping is only named, a long value cut."""
    text = _written(value)
    return text if len(text) <= _MOST_WRITTEN else f"{text[: _MOST_WRITTEN - 3]}..."


def _written(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    return "a mapping" if isinstance(value, dict) else repr(value)


def count(number: int, what: str, several: str = "") -> str:
    """Say how many: ``1 job``, ``2 jobs``; `several` where the plural has no plain s."""
    return f"{number} {what if number == 1 else several or what + 's'}"


def cells_and_stages(cells: int, stages: int) -> str:
    """Say how many: ``2 cells and 1 stage``, ``1 stage``; nothing of none."""
    return " and ".join(count(number, what) for number, what in ((cells, "cell"), (stages, "stage")) if number)


def amount(number: float) -> str:
    """Write a number of hours for people: ``1.33``, ``20``, ``0.004``."""
    return f"{number:.2f}".rstrip("0").rstrip(".") if number == 0 or number >= 0.01 else f"{number:.1g}"
