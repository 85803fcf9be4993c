"""Names, colours, line styles, sort order and number formats for all tables and figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from hpcrl.catalogue.registry import algorithms, frameworks

# Colours of Okabe and Ito, which readers with any common colour blindness can distinguish. A framework has the same colour
# in every figure.
_COLOURS = {"torch": "#D55E00", "tensorflow": "#0072B2", "jax": "#009E73", "mxnet": "#CC79A7", "numpy": "#8C564B"}
FRAMEWORKS = {name: (frameworks()[name].title, colour) for name, colour in _COLOURS.items()}
OTHERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B")
GREY = "#7F7F7F"
# mode of execution -> lengths of strokes and gaps of its lines
DASHES = {"": (1, 0), "eager": (1, 0), "lazy": (6, 3), "fused": (2, 2), "xla": (8, 3, 2, 3)}
_OTHER_DASH = (4, 4)
# phase -> its name and colour
PHASES = {
    "setup": ("set-up", "#777777"),
    "compile": ("compile", "#994F00"),
    "prepare": ("preparation", "#882255"),
    "env_step": ("environment", "#56B4E9"),
    "act": ("acting", "#0072B2"),
    "replay": ("replay", "#009E73"),
    "transfer": ("transfer", "#F0E442"),
    "update": ("update", "#D55E00"),
    "communicate": ("communication", "#CC79A7"),
    "fused": ("compiled loop", "#6A51A3"),
    "evaluate": ("evaluation", "#E69F00"),
    "other": ("other", "#BBBBBB"),
    "check": ("check", "#117733"),
    "tensorboard": ("TensorBoard", "#AA4499"),
    "tracking": ("MLflow", "#661100"),
    "send": ("sending", "#44AA99"),
    "receive": ("receiving", "#999933"),
    "wait": ("waiting", "#DDDDDD"),
    "profile": ("profiler", "#332288"),
    "checkpoint": ("checkpoint", "#8A2BE2"),
}
_WORDS = {"horovod": "Horovod", "True": "true", "False": "false"}
# A minus after another character than a space is a hyphen.
_DIGITS = re.compile(r"((?:(?<!\S)-)?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


def display(value: object, digits: int = 6) -> str:
    """Return the display name of a framework, of a kind of parallelism, or of any other value.

    Args:
        digits: significant digits of a floating-point number (:func:`digits_of`).
    """
    text = str(value)
    for catalogue in (frameworks(), algorithms()):
        if text in catalogue:
            return catalogue[text].title
    return f"{value:.{digits}g}" if isinstance(value, float) else _WORDS.get(text, text)


def digits_of(values: Iterable[object]) -> int:
    """Return six significant digits, or as many as give the floating-point numbers among some values in full if six do not distinguish them."""
    numbers = {value for value in values if isinstance(value, float) and value == value}
    if len({f"{value:.6g}" for value in numbers}) == len(numbers):
        return 6
    return next(digits for digits in range(7, 18) if all(float(f"{value:.{digits}g}") == value for value in numbers))


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each display name: a framework's own; for others the free ones, in the order of their names."""
    known = {name: colour for name, colour in FRAMEWORKS.values()}
    ordered = sorted(set(names), key=natural)
    taken = {known[name] for name in ordered if name in known}
    free = [colour for colour in OTHERS if colour not in taken] or list(OTHERS)
    others = [name for name in ordered if name not in known]
    given = {name: free[place % len(free)] for place, name in enumerate(others)}
    return {name: known.get(name) or given[name] for name in ordered}


def enumerated(names: Sequence[str]) -> str:
    """Return some names in a sentence: `A, B and C`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def dash(mode: str) -> list[int]:
    return list(DASHES.get(mode, _OTHER_DASH))


def natural(name: object) -> tuple[tuple[bool, float, str], ...]:
    """Return a key that sorts `2 cores` before `10 cores`, and `-2` before `-1`."""
    parts = _DIGITS.split(str(name).lower())
    return tuple((place % 2 == 0, float(part) if place % 2 else 0.0, part) for place, part in enumerate(parts) if part)


def capitalised(text: str) -> str:
    """Return a heading. A name that a program gave to a value, such as charts/episode_reward, stays as it is."""
    return text if {"/", "_"} & set(text.partition(" ")[0]) else text[:1].upper() + text[1:]


def in_short(value: float) -> str:
    """Write a number with three significant digits, and commas between thousands."""
    if value != value:
        return ""
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-3:
        return f"{value:.2e}"
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.{decimals}f}"


def in_gib(size: float) -> str:
    """Write a number of bytes in GiB, without an exponent from a tenth of a MiB on: `0.00062`."""
    value = size / 1024**3
    return f"{value:.2g}" if 1e-4 <= value < 1e-3 else in_short(value)


def at_least(level: float) -> str:
    """Write the level of an interval that has it or more, rounded down: `93 %` of 0.9375."""
    return f"{math.floor(100 * level)} %"


def counted(number: int, noun: str) -> str:
    """Write a number of things: `1 cell`, `10,000 cells`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def spread(names: Mapping[str, int]) -> str:
    """Join counted names: `5 timeout, 1 failed`."""
    return ", ".join(f"{number:,} {name}" for name, number in names.items())
