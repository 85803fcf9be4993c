"""Hyperparameters as data: type, range and default of each field of a Settings dataclass, and the check of values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, TypeVar

from hpcrl.errors import UsageError, suggestion, written

Settings = TypeVar("Settings")
Kind = Literal["number", "integer", "integers", "flag", "choice"]


def whole_numbers(value: Any) -> tuple[Any, ...]:
    """Return what a list has, or a text such as ``128x64``, since values of axes are no lists; nothing if it is neither."""
    if isinstance(value, str):
        return tuple(int(part) for part in value.split("x")) if re.fullmatch(r"\d{1,9}(x\d{1,9})*", value) else ()
    return tuple(value) if isinstance(value, list | tuple) else ()


@dataclass(frozen=True)
class Rule:
    """The rule for a value. `minimum` and `maximum` are inclusive; a value must be greater than `above`."""

    kind: Kind
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    above: float | None = None

    def expected(self) -> str:
        """Say what is expected, as in ``a number from 0 to 1``."""
        if self.kind == "flag":
            return "true or false"
        if self.kind == "choice":
            return " or ".join(self.choices)
        what = {"number": "a number", "integer": "a whole number", "integers": "a list of whole numbers"}[self.kind]
        if self.above is not None:
            what += f" greater than {self.above:g}" + ("" if self.maximum is None else f" and at most {self.maximum:,}")
        elif self.minimum is not None and self.maximum is not None:
            what += f" from {self.minimum:g} to {self.maximum:,}"
        elif self.minimum is not None:
            what += f" of at least {self.minimum:g}"
        return f"{what}, or a text such as 128x64" if self.kind == "integers" else what

    def admits(self, value: Any) -> bool:
        """Tell whether a value is of the kind and within the bounds."""
        if self.kind == "flag":
            return isinstance(value, bool)
        if self.kind == "choice":
            return isinstance(value, str) and value in self.choices
        if self.kind == "integers":
            numbers = whole_numbers(value)
            return bool(numbers) and all(self._in_range(entry, int) for entry in numbers)
        return self._in_range(value, int if self.kind == "integer" else (int, float))

    def _in_range(self, value: Any, kind: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, kind):
            return False
        try:
            if not math.isfinite(value):
                return False
        except OverflowError:  # an integer beyond every float
            return False
        if self.above is not None and value <= self.above:
            return False
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)


def number(
    default: float, minimum: float | None = None, maximum: float | None = None, above: float | None = None
) -> Any:
    """Declare a field for a finite number."""
    return field(default=default, metadata={"rule": Rule("number", minimum, maximum, above=above)})


def same_number(minimum: float | None = None) -> Any:
    """Declare a field for a finite number; without a value (None) it is another field's."""
    return field(default=None, metadata={"rule": Rule("number", minimum)})


def integer(default: int, minimum: int = 1, maximum: int = 10**12) -> Any:
    """Declare a field for a whole number."""
    return field(default=default, metadata={"rule": Rule("integer", minimum, maximum)})


def integers(default: tuple[int, ...], minimum: int = 1, maximum: int = 10**6) -> Any:
    """Declare a field for a list of one or more whole numbers."""
    return field(default=default, metadata={"rule": Rule("integers", minimum, maximum)})


def flag(default: bool) -> Any:
    """Declare a field for true or false."""
    return field(default=default, metadata={"rule": Rule("flag")})


def choice(default: str, *others: str) -> Any:
    """Declare a field for one of a few words, the default first."""
    return field(default=default, metadata={"rule": Rule("choice", choices=(default, *others))})


def names(settings: type[Any]) -> list[str]:
    """Return the names of a Settings dataclass."""
    return [setting.name for setting in fields(settings)]


def default_of(declared: Field[Any]) -> str:
    """Return a field's default as text; without one it is the value of the field that its name says after ``final_``."""
    if declared.default is None:
        return declared.name.removeprefix("final_")
    value = list(declared.default) if isinstance(declared.default, tuple) else declared.default
    return value if isinstance(value, str) else str(written(value))


def fault(settings: type[Any], name: str, value: Any) -> str | None:
    """Say what is wrong with the value of one known field; None if it is valid."""
    declared: Field[Any] = next(setting for setting in fields(settings) if setting.name == name)
    rule: Rule = declared.metadata["rule"]
    if rule.admits(value) or (value is None and declared.default is None):  # the latter in a file of saved settings
        return None
    if rule.kind == "choice" and isinstance(value, str):
        return f"no {name} {written(value)}; {suggestion(value, rule.choices)}"
    default = default_of(declared)
    return f"expected {rule.expected()}, got {written(value)} (default {default})"


def faults(settings: type[Any], values: Mapping[str, Any], what: str = "hyperparameter") -> Iterator[tuple[str, str]]:
    """Give the name and the error of each invalid value: unknown name, wrong type, out of range, NaN, unknown choice."""
    known = names(settings)
    for name, value in values.items():
        if name not in known:
            yield name, f"no {what} {name!r}; {suggestion(name, known)}"
        elif wrong := fault(settings, name, value):
            yield name, wrong


def check(owner: str, settings: type[Settings], values: Mapping[str, Any], what: str = "hyperparameter") -> Settings:
    """Return the settings of an algorithm, or of another `owner`, with these values; `what` they are is said in errors.

    Raises:
        UsageError: a name is unknown or a value is invalid.
    """
    for name, wrong in faults(settings, values, what):
        unknown = wrong.startswith(f"no {what}")
        raise UsageError(f"{owner}: {wrong}" if unknown else f"{owner}: {name}: {wrong}")
    declared: type[Any] = settings
    kinds = {setting.name: setting.metadata["rule"].kind for setting in fields(declared)}
    lists = {name: whole_numbers(value) for name, value in values.items() if kinds[name] == "integers"}
    return settings(**{**values, **lists})
