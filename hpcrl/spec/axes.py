"""The axes of a study, axes of several keys (`zip`), and points drawn at random (`random`)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from hpcrl.spec.explain import Key
from hpcrl.spec.resources import Model, Scalar

if TYPE_CHECKING:
    from hpcrl.spec.study import Study

MAX_CELLS = 1_000_000
_DIGITS = 6  # significant digits of drawn numbers, because the last digits of a logarithm differ between machines
_TRIES = 1000


_Whole = Annotated[int, Field(gt=-(2**63), lt=2**63)]


class Draw(Model):
    """The distribution of a key's values: exactly one of these."""

    uniform: tuple[float, float] | None = Field(None, description="minimum and maximum")
    log_uniform: tuple[float, float] | None = Field(None, description="minimum and maximum; the logarithm is uniform")
    integers: tuple[_Whole, _Whole] | None = Field(
        None, description="minimum and maximum, whole numbers, both included"
    )
    choice: tuple[Scalar, ...] | None = Field(None, min_length=1, description="the values")

    def faults(self) -> Iterator[tuple[Key, str]]:
        kinds = [name for name in Draw.model_fields if getattr(self, name) is not None]
        if len(kinds) != 1:
            yield (), f"expected one of {', '.join(Draw.model_fields)}, got {' and '.join(kinds) or 'none'}"
            return
        (kind,) = kinds
        values = getattr(self, kind)
        if kind == "choice":
            if len({repr(value) for value in values}) < len(values):
                yield (kind,), "repeats a value"
        elif values[0] >= values[1]:
            yield (kind,), f"expected the minimum first, got [{values[0]}, {values[1]}]"
        elif kind == "log_uniform" and values[0] <= 0:
            yield (kind,), f"expected numbers greater than 0, got {values[0]}"

    def size(self) -> float:
        """Return the number of possible values."""
        if self.choice is not None:
            return len(self.choice)
        return self.integers[1] - self.integers[0] + 1 if self.integers else math.inf

    def value(self, number: int) -> Scalar:
        """Return the value for a random number of 256 bits."""
        if self.choice is not None:
            return self.choice[number % len(self.choice)]
        if self.integers is not None:
            return self.integers[0] + number % (self.integers[1] - self.integers[0] + 1)
        share = (number >> 203) / 2**53
        low, high = self.uniform or self.log_uniform or (0.0, 1.0)
        if self.uniform:
            value = low * (1 - share) + high * share
        else:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        return min(max(float(f"{value:.{_DIGITS}g}"), low), high)


class Random(Model):
    """One more axis, of points drawn at random. If `points` grows, the earlier points stay the same."""

    points: int = Field(ge=1, le=MAX_CELLS, strict=True)
    seed: int = Field(0, ge=0, lt=2**63, strict=True, description="seed of the draws, independent of the cells' seeds")
    draw: dict[str, Draw] = Field(min_length=1, description="key: the distribution of its values")

    def faults(self) -> Iterator[tuple[Key, str]]:
        before = len(
            faults := [((key, *below), text) for key, draw in self.draw.items() for below, text in draw.faults()]
        )
        yield from ((("draw", *path), text) for path, text in faults)
        if before:
            return
        most = math.prod(draw.size() for draw in self.draw.values())
        if most < self.points:
            yield (
                ("points",),
                f"expected at most {int(most)}, which is the number of different points, got {self.points}",
            )
        elif len(self.drawn()) < self.points:
            yield ("points",), f"{_TRIES} draws gave no new point after {len(self.drawn())} points: reduce `points`"

    def drawn(self) -> list[dict[str, Scalar]]:
        """Return the points, which are all different. They are the same on every machine and version of Python."""
        points: dict[str, dict[str, Scalar]] = {}
        for place in range(self.points):
            for attempt in range(_TRIES):
                point = {key: draw.value(self._number(key, place, attempt)) for key, draw in self.draw.items()}
                if repr(point) not in points:
                    points[repr(point)] = point
                    break
            else:
                break
        return list(points.values())

    def _number(self, key: str, place: int, attempt: int) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.seed} {key} {place} {attempt}".encode()).digest())


@dataclass(frozen=True)
class Option:
    """One position on an axis: the keys that it sets, and the place of each value in the file."""

    values: Mapping[str, Any]
    paths: Mapping[str, Key]


def options(study: Study) -> list[list[Option]]:
    """Return the positions of each axis, in the order of a study's cells: axes, then `zip`, then `random`, then the trials of `search`."""
    positions: list[list[Option]] = []
    for axis, values in study.axes.items():
        positions.append([])
        for index, value in enumerate(values):
            here: Key = ("axes", axis, index)
            if isinstance(value, dict):
                positions[-1].append(Option(value, {key: (*here, key) for key in value}))
            else:
                positions[-1].append(Option({axis: value}, {axis: here}))
    for number, together in enumerate(study.zip or ()):
        length = min(map(len, together.values()), default=0)
        positions.append(
            [
                Option(
                    {key: values[index] for key, values in together.items()},
                    {key: ("zip", number, key, index) for key in together},
                )
                for index in range(length)
            ]
        )
    if study.random:
        paths: dict[str, Key] = {key: ("random", "draw", key) for key in study.random.draw}
        positions.append([Option(point, paths) for point in study.drawn])
    if study.search:
        positions.append(study.search.options())
    return positions


def included(study: Study) -> list[Option]:
    """Return the included cells of a study, each as one position that sets all its keys."""
    return [
        Option(extra, {key: ("include", number, key) for key in extra}) for number, extra in enumerate(study.include)
    ]


def axis_faults(study: Study) -> Iterator[tuple[Key, str]]:
    """Give the faults of `zip` and `random`, and the keys that are set twice."""
    owners: dict[str, str] = {}
    for axis, values in study.axes.items():
        keys = {key for value in values for key in (value if isinstance(value, dict) else [axis])}
        owners |= dict.fromkeys(keys, f"axes.{axis}")
    places: list[tuple[Key, str]] = []
    for number, together in enumerate(study.zip or ()):
        at: Key = ("zip", number)
        places += [((*at, key), key) for key in together]
        if len(together) < 2:
            yield at, "expected at least two keys, got fewer: make a single key an axis"
            continue
        lengths = {key: len(values) for key, values in together.items()}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            yield at, f"expected the same number of values for each key, got: {said}"
        elif 0 in lengths.values():
            yield at, "has no values: give at least one for each key"
        elif len({repr(combination) for combination in zip(*together.values(), strict=True)}) < next(
            iter(lengths.values())
        ):
            yield at, "repeats a combination of values"
    if study.random:
        places += [(("random", "draw", key), key) for key in study.random.draw]
        yield from ((("random", *below), text) for below, text in study.random.faults())
    places += [(("computed", key), key) for key in study.computed or {}]
    for extra in study.include:
        owners |= {key: "include" for key in extra if key in (study.computed or {})}
    for path, key in places:
        if key in owners:
            yield path, f"{key} is already set by {owners[key]}: remove one of them"
        owners[key] = ".".join(map(str, path[:-1]))
