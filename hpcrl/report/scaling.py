"""Strong and weak scaling: find cells that differ only in their cores, and compute gain and cost of more cores."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pandas as pd

from hpcrl.formats.runs import cores
from hpcrl.report.design import colours, counted, display, in_short, natural
from hpcrl.report.groups import kinds
from hpcrl.report.intervals import with_interval
from hpcrl.report.names import names_of
from hpcrl.report.statistics import Estimate, Values, geometric_mean, ratio

Kind = Literal["strong", "weak"]
# Sizes per core with a smaller relative difference count as equal, because rows may not divide evenly.
_NEAR = 0.02
# Factors of a number of cores. A series keeps only as many of them equal as it needs to distinguish its points.
_SHAPE = ("cpus", "tasks", "nodes")
_AXIS = "axis "  # begins the name of an axis's column


@dataclass(frozen=True)
class Point:
    """The runs on one number of cores (or GPUs), relative to the minimum number of the series.

    Args:
        time: time of the command, or of training alone; geometric mean in seconds.
        speed_up: rate of work relative to the minimum number; in weak scaling the work per unit is constant.
        efficiency: speed-up over the ratio of the numbers of units; 1 is ideal.
        cost: cost of one run from its start to its end, in the unit of the series.
    """

    count: int
    runs: int
    time: Estimate
    speed_up: Estimate
    efficiency: Estimate
    cost: Estimate


@dataclass(frozen=True)
class Series:
    """Cells on one kind of machine that differ only in the number of their cores (strong), or that have equal work per core (weak).

    Args:
        unit: what is counted: core or GPU.
        cost_unit: the site's unit, or core-hours.
        whole: whether costs are of whole runs. Those of requeued cells are not known: then costs are of `time` alone.
    """

    kind: Kind
    cluster: str
    label: str
    unit: str
    cost_unit: str
    colour: str
    hex: str
    dash: str
    points: tuple[Point, ...]
    whole: bool = True


def scaling(rows: pd.DataFrame, size: Sequence[str] = ()) -> list[Series]:
    """Return the series of a study, strong ones first, each kind in the order of its names; without runs that had more cores than their machine.

    Args:
        rows: attempts of one study with the columns of `with_groups`.
        size: the axes whose product is the work of a cell, from the study's `scaling`.
    """
    done = rows[
        (rows["outcome"] == "completed") & (rows["training_time"] > 0) & rows["cpus"].notna() & ~rows["crowded"]
    ]
    if done.empty:
        return []
    table = _flat(done, size)
    axes = [name for name in table.columns if str(name).startswith(_AXIS)]
    equal = [name for name in axes if name.removeprefix(_AXIS) not in size]
    table = table.assign(label=_labels(table[equal]), kind=kinds(table, ["cluster", "unit", "gpu_type"]).str.strip())
    alike = ["cluster", "unit", "gpu_type", "machine", *equal]
    # Most studies have one number of cores, and some have thousands of configurations.
    table = table[table.groupby(alike)["count"].transform("nunique") > 1]
    several_types = table.loc[table["unit"] == "GPU", "gpu_type"].nunique() > 1
    series: list[Series] = []
    for _, group in table.groupby(alike, sort=True):
        first = group.iloc[0]
        words = [
            first["label"],
            first["gpu_type"] if several_types else "",
            first["kind"],
        ]
        label = " ".join(filter(None, words))
        for way, part in _by_parallelism(group):
            for kind, name, own in [*_strong(part, size), *_weak(part, size)]:
                for shape, cells in _shapes(own):
                    if cells["count"].nunique() > 1:
                        series.append(_series(kind, " ".join(filter(None, [label, name, way, shape])), cells))
    return _coloured(sorted(series, key=lambda line: (line.kind, line.cluster, natural(line.label))))


def sizes(study: Mapping[str, object]) -> tuple[str, ...]:
    """Return the axes with the size of a study's problem, from the dataset's index."""
    match study.get("scaling"):
        case {"size": [*names]}:
            return tuple(name for name in names if isinstance(name, str))
    return ()


def in_words(series: Sequence[Series], most: int = 4, several: bool = False) -> list[str]:
    """Return gain and cost of the maximum number of cores in words, for some series.

    Args:
        several: whether the study has series on other clusters, too.
    """
    several = several or len({curve.cluster for curve in series}) > 1
    sentences = []
    for curve in series[:most]:
        first, last = curve.points[0], curve.points[-1]
        place = f" on {curve.cluster}" if several else ""
        named = f", {curve.label}" if curve.label else ""
        text = f"{curve.kind.capitalize()} scaling{named}{place}: {counted(last.count, curve.unit)} "
        if curve.kind == "strong":
            text += f"are {with_interval(last.speed_up)} times as fast as {first.count}"
        else:
            text += f"do {with_interval(last.speed_up)} times the work of {first.count} in the same time"
        more = Estimate(last.cost.value / first.cost.value, None, None) if first.cost.value else None
        costs = "a run costs" if curve.whole else "a run costs at least"
        cost = f"; {costs} {in_short(last.cost.value)} {curve.cost_unit}" if more else ""
        if more and curve.kind == "strong":
            cost += f", {in_short(more.value)} times as much"
        sentences.append(f"{text}, an efficiency of {100 * last.efficiency.value:.0f} %{cost}.")
    if more_series := len(series) - len(sentences):
        sentences.append(f"{more_series:,} more {'is' if more_series == 1 else 'are'} in scaling.csv.")
    return sentences


def as_frame(series: Sequence[Series]) -> pd.DataFrame:
    """Return all points as plain numbers, one row each."""
    rows = []
    for curve in series:
        for point in curve.points:
            row: dict[str, object] = {
                "scaling": curve.kind,
                "cluster": curve.cluster,
                "configuration": curve.label,
                "unit": curve.unit,
                "count": point.count,
                "runs": point.runs,
            }
            for name, estimate in (
                ("seconds", point.time), ("speed_up", point.speed_up), ("efficiency", point.efficiency), ("cost", point.cost),
            ):  # fmt: skip
                row |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
            rows.append(row | {"cost_unit": curve.cost_unit})
    return pd.DataFrame(rows)


def _flat(done: pd.DataFrame, size: Sequence[str]) -> pd.DataFrame:
    """Return the rows with a column for each axis, and `unit`, `count`, `shape`, `problem`, `work`, `rate`, `cost_unit`."""
    configs = [{name: value for name, value in json.loads(text).items() if name != "seed"} for text in done["config"]]
    names = sorted({name for config in configs for name in config})
    table = done.assign(
        tasks=done["tasks"].fillna(1).astype(int),
        nodes=done["nodes"].fillna(1).astype(int),
        gpu_type=done["gpu_type"].fillna("").astype(str),
        unit=done["gpus"].fillna(0).map(lambda gpus: "GPU" if gpus else "core"),
        parallelism=done["parallelism"].fillna("none").astype(str),
        framework=done["framework"].fillna("").astype(str),
        problem=[json.dumps([config.get(name) for name in size]) for config in configs],
        work=[_work(config, size) for config in configs],
        # As text, so that a missing value is a value, too; an axis may have the name of a column.
        **{_AXIS + name: [json.dumps(config.get(name), sort_keys=True) for config in configs] for name in names},
    )
    asked = cores(table)
    billed = table.groupby("cluster")["charge_unit"].transform(lambda column: column.notna().all())
    return table.assign(
        count=asked.where(table["unit"] == "core", table["gpus"]).astype(int),
        shape=[str(shape) for shape in zip(*(table[name] for name in _SHAPE), strict=True)],
        rate=table["charge_rate"].where(billed, table["charged_cores"].fillna(asked)).astype(float),
        cost_unit=table["charge_unit"].where(billed, "core-hours"),
    )


def _work(config: dict[str, Any], size: Sequence[str]) -> float:
    values = [config.get(name) for name in size]
    numbers = [float(value) for value in values if isinstance(value, int | float) and value > 0]
    return math.prod(numbers) if values and len(numbers) == len(values) else math.nan


def _labels(axes: pd.DataFrame) -> list[str]:
    """Name each configuration as the comparison does, by the axes that distinguish several of them."""
    several = [name for name in axes if axes[name].nunique() > 1]
    configs = [
        {str(name).removeprefix(_AXIS): json.loads(str(text)) for name, text in row.items()}
        for row in axes[several].to_dict("records")
    ]
    named = names_of(configs)
    return [
        name if any(value is not None for value in config.values()) else ""
        for name, config in zip(named, configs, strict=True)
    ]


def _size(axis: str, text: str) -> str:
    return f"{axis.removeprefix(_AXIS).replace('_', ' ')} {display(json.loads(text))}"


def _by_parallelism(group: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Split cells by the parallelism of their ranks. Cells with one rank are the start of each kind."""
    ways = [way for way in sorted(group["parallelism"].unique()) if way != "none"]
    alone = group[group["parallelism"] == "none"]
    if not ways or alone["count"].nunique() > 1:
        yield "", alone
    for way in ways:
        own = group[group["parallelism"] == way]
        single = alone[(alone["tasks"] == 1) & alone["cpus"].isin(own["cpus"])]
        yield display(way), pd.concat([single, own])


def _strong(part: pd.DataFrame, size: Sequence[str]) -> Iterator[tuple[Kind, str, pd.DataFrame]]:
    """Give the cells of each problem."""
    sizes = [_AXIS + name for name in dict.fromkeys(size) if _AXIS + name in part]
    if not sizes:
        yield "strong", "", part
        return
    for _, group in part.groupby(sizes, sort=True):
        yield "strong", " ".join(_size(name, group[name].iloc[0]) for name in sizes), group


def _weak(part: pd.DataFrame, size: Sequence[str]) -> Iterator[tuple[Kind, str, pd.DataFrame]]:
    """Give the cells with equal work per core."""
    known = part[part["work"].notna()]
    shares = (known["work"] / known["count"]).sort_values(kind="stable")
    # A new group begins when the next share of work is too far from the first one of the group.
    first = math.nan
    groups: list[tuple[float, list[Any]]] = []
    for index, share in shares.items():
        if not groups or share > first * (1 + _NEAR):
            first = share
            groups.append((share, []))
        groups[-1][1].append(index)
    for share, places in groups:
        own = known.loc[sorted(places)]
        # Two problems of equal work may take different times.
        if own["work"].nunique() > 1 and (own.groupby("count")["problem"].nunique() == 1).all():
            names = " × ".join(name.replace("_", " ") for name in size)
            yield "weak", f"{names} {in_short(share)} for each {own['unit'].iloc[0]}", own


def _shapes(group: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split cells until each number of cores has one form only, with the minimum number of equal factors of `_SHAPE`."""
    for number in range(len(_SHAPE)):
        for equal in combinations(_SHAPE, number):
            parts = [part for _, part in group.groupby(list(equal), sort=True)] if equal else [group]
            if all((part.groupby("count")["shape"].nunique() == 1).all() for part in parts):
                return [(", ".join(_held(name, part) for name in equal), part) for part in parts]
    return []


def _held(name: str, part: pd.DataFrame) -> str:
    """Name the number that is equal in a series."""
    words = {"cpus": "core", "tasks": "rank", "nodes": "node"}
    text = counted(int(part[name].iloc[0]), words[name])
    return f"{text} for each rank" if name == "cpus" else text


def _series(kind: Kind, label: str, cells: pd.DataFrame) -> Series:
    groups = {int(group["count"].iloc[0]): group for _, group in cells.groupby("count", sort=True)}
    fewest = min(groups)
    base = _times(groups[fewest])
    whole = bool((cells["wall_time"] > 0).all())
    points = []
    for count, group in groups.items():
        times, scale = _times(group), count / fewest
        beside = ratio(base, times) if count != fewest else Estimate(1.0, None, None)
        time, rate = geometric_mean(times), float(group["rate"].iloc[0]) / 3600
        charged = geometric_mean(np.asarray(group["wall_time"].to_numpy(float))) if whole else time
        work = scale if kind == "weak" else 1.0
        points.append(
            Point(count, len(times), time, _scaled(beside, work), _scaled(beside, work / scale), _scaled(charged, rate))
        )
    first = cells.iloc[0]
    return Series(
        kind=kind, cluster=str(first["cluster"]), label=label, unit=str(first["unit"]), cost_unit=str(first["cost_unit"]),
        colour=str(first["colour"]) if first["framework"] else "", hex=str(first["hex"]), dash=str(first["dash"]),
        points=tuple(points), whole=whole,
    )  # fmt: skip


def _coloured(found: list[Series]) -> list[Series]:
    """Give each series a colour: its framework's if these differ, otherwise its own."""
    looks = [(curve.kind, curve.cluster, curve.unit, curve.hex, curve.dash) for curve in found]
    if all(curve.colour for curve in found) and len(set(looks)) == len(looks):
        return found
    names = {curve: curve.label or "all cells" for curve in found}
    hues = {kind: colours([names[curve] for curve in found if curve.kind == kind]) for kind in ("strong", "weak")}
    return [replace(curve, colour=names[curve], hex=hues[curve.kind][names[curve]], dash="") for curve in found]


def _times(group: pd.DataFrame) -> Values:
    return np.asarray(group["training_time"].to_numpy(float))


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    low, high = estimate.low, estimate.high
    return Estimate(
        estimate.value * factor, None if low is None else low * factor, None if high is None else high * factor
    )
