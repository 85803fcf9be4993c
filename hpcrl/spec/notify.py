"""Who is told at the end of a plan: `notify` of a study, of a user's settings, or of the command line."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from hpcrl.errors import UsageError
from hpcrl.secrets import secret_among
from hpcrl.spec.workload import NO_SECRET


def _notify(value: Any) -> Any:
    if isinstance(value, str):
        if not re.fullmatch(r"https?://[^\s@]+", value):
            raise ValueError(
                f'"{value}" is not an http(s) URL without a user name; write a command as a list: [mail, -s, hpcrl, me@example.org]'
            )
        if secret := secret_among([value]):
            raise ValueError(f"{secret} {NO_SECRET}")
        return value
    if not isinstance(value, list | tuple) or not value or not all(isinstance(word, str) for word in value):
        raise ValueError(
            "expected an http(s) URL, or a command as a list of words, such as [mail, -s, hpcrl, me@example.org]"
        )
    if any("\0" in word for word in value):
        raise ValueError("a word of the command contains a NUL character")
    if secret := secret_among(value):
        raise ValueError(f"{secret} {NO_SECRET}")
    return tuple(value)


Notify = Annotated[
    str | tuple[str, ...],
    BeforeValidator(_notify, json_schema_input_type=str | Annotated[list[str], Field(min_length=1)]),
]


def read_notify(text: str) -> Notify:
    """Read `notify` from a command line: a URL, or a command line.

    Raises:
        UsageError: it is neither.
    """
    try:
        value = text if re.match(r"https?://", text) else shlex.split(text)
        return TypeAdapter[Notify](Notify).validate_python(value)
    except ValidationError as error:
        raise UsageError(f"--notify: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    except ValueError as error:
        raise UsageError(f"--notify: {text!r} is not a command line: {error}") from None
