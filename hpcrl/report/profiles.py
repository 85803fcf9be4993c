"""Attempts under a profiler: left out of every comparison, their profiles, and what the profiler itself costs.

A profiler changes the times that it measures. So an attempt under one is compared with nothing: not in tables, figures, findings
and tests, and not with a baseline. Where the same cell also ran without it, the ratio of the two times is the profiler's cost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from hpcrl.formats.profiles import is_update, read_functions, read_stacks
from hpcrl.formats.runs import machines
from hpcrl.profilers import KEY, PROFILERS, window_of
from hpcrl.report.design import counted, enumerated, in_short
from hpcrl.report.figures.updates import dispatched, places_of
from hpcrl.report.flame import flame_graph
from hpcrl.report.groups import with_groups
from hpcrl.report.intervals import INTERVAL, span
from hpcrl.report.statistics import geometric_mean

# What two cells must have in common, besides their configuration, to differ only in the profiler.
_ALIKE = (
    "cluster", "machine", "environment", "nodes", "tasks", "cpus", "gpus", "gpu_type", "parallelism", "overcommit",
)  # fmt: skip
_KEYS = ["plan", "cell", "attempt"]
HEADS = ("configuration", "resources", "seed", "rank", "cell", "size (KiB)", "written in (s)", "file")
MOST_DRAWN = 8  # profiles on the page
MOST_TOLD = 15  # functions of each
_MOST_COSTS = 6  # configurations in one sentence


@dataclass(frozen=True)
class Drawn:
    """One profile: its title, its flame graph as SVG ("" without stacks), its functions, and the unit of their values."""

    title: str
    svg: str
    functions: list[list[str]]
    unit: str


@dataclass(frozen=True)
class Profiled:
    """The profiled attempts of a study.

    Args:
        sentences: how many there are, that nothing is compared with them, and what each profiler costs.
        rows: one line for each profile, with the heads of `heads`.
        drawn: one profile of each configuration and profiler.
        updates: what cProfile counted in the learners' updates (:func:`hpcrl.report.figures.updates.dispatched`).
    """

    sentences: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    updates: pd.DataFrame = field(default_factory=pd.DataFrame)
    heads: tuple[str, ...] = HEADS


def compared(cells: pd.DataFrame) -> pd.DataFrame:
    """Leave out the attempts under a profiler; of a study that has no others, keep those of one profiler.

    The configurations of the kept ones name their profiler.

    Args:
        cells: the table ``cells``.
    """
    if cells["profile"].isna().all():
        return cells
    kept = cells["profile"].isna()
    for _, rows in cells.groupby("study", sort=False):
        if rows["profile"].isna().any():
            continue
        numbers = rows["profile"].value_counts()
        most = min(numbers.index, key=lambda name: (-numbers[name], str(name)))
        kept[rows.index[rows["profile"] == most]] = True
    return with_profiler(cells[kept])


def with_profiler(cells: pd.DataFrame) -> pd.DataFrame:
    """Name the profiler in the configuration of every attempt, also of those that ran by hand under one."""
    texts = [
        text if pd.isna(profiler) else json.dumps({**json.loads(text), KEY: profiler}, sort_keys=True)
        for text, profiler in zip(cells["config"], cells["profile"], strict=True)
    ]
    return cells.assign(config=texts)


def profiles_of(cells: pd.DataFrame, rows: pd.DataFrame, profiles: pd.DataFrame) -> Profiled:
    """Describe the profiled attempts of a study.

    Args:
        cells: its rows of the table ``cells``, with `shared` if it is known (:func:`hpcrl.report.machines.side_by_side`).
        rows: those that are compared, with the columns of `with_groups`.
        profiles: the table ``profiles`` of the dataset.
    """
    under = cells[cells["profile"].notna()]
    if under.empty:
        return Profiled()
    alone = bool(rows["profile"].notna().all())
    named = _named(under)
    known = profiles.merge(named, on=_KEYS, how="inner")
    told = known.sort_values(["what", "where", "seed", "attempt", "rank"], kind="stable")
    records = told.to_dict("records")
    sentences = [*_counted(under, rows, alone), *_costs(cells, named, known), *_blind(known, under)]
    updates = dispatched(named.assign(config=under["config"], steps=under["steps"]), profiles)
    return Profiled(sentences, [_row(record) for record in records], _drawn(records), updates)


def _named(under: pd.DataFrame) -> pd.DataFrame:
    """Return the keys of profiled attempts with the names of their configurations, resources and places."""
    alone = with_profiler(under).assign(latest=True)
    # Each attempt counts, not only the latest of its cell.
    groups = with_groups(alone.assign(cell=alone["cell"].astype(str) + " " + alone["attempt"].astype(str), seed=None))
    named = under[[*_KEYS, "seed"]].copy()
    for name, column in (("what", groups["what"]), ("where", groups["where"]), ("place", places_of(groups))):
        named[name] = column.reindex(under.index)
    return named


def _counted(under: pd.DataFrame, rows: pd.DataFrame, alone: bool) -> list[str]:
    names = [_title(str(name)) for name in sorted(under["profile"].unique())]
    tools = enumerated(names)
    if not alone:
        return [
            f"{counted(len(under), 'attempt')} ran under a profiler ({tools}). A profiler changes times, so these attempts are in no table, figure, finding or test."
        ]
    left = len(under) - len(rows)
    text = f"Every cell of this study ran under a profiler ({tools}): its times include the profiler's cost, and compare with nothing else."
    if len(names) > 1:
        chosen = _title(str(rows["profile"].iloc[0]))
        text += f" The comparison has the cells under {chosen} only, and leaves out {counted(left, 'attempt')}."
    return [text]


def _blind(known: pd.DataFrame, under: pd.DataFrame) -> list[str]:
    """Name the configurations of trainings whose profiler saw no update, because it looked at some steps only."""
    found = known.merge(under[[*_KEYS, "config", "workload"]], on=_KEYS)
    found = found[(found["profiler"] == "cprofile") & found["functions"].notna() & (found["workload"] != "command")]
    blind = []
    for what, group in found.groupby("what", sort=True):
        begin, end = window_of(json.loads(group["config"].iloc[0]))
        saw = any(is_update(function.name) for text in group["functions"] for function in read_functions(text))
        if (begin or end) and not saw:
            steps = f"steps {begin:,} to {end:,}" if end else f"the steps from {begin:,} on"
            blind.append(f"{what} ({steps})")
    return [f"Profiles of {enumerated(blind)} have no update of the learner in them."] if blind else []


def _costs(cells: pd.DataFrame, named: pd.DataFrame, profiles: pd.DataFrame) -> list[str]:
    """Say for each profiler how much longer the same work takes under it, from cells that differ in nothing else.

    An attempt whose profiler failed on any rank is left out: it may have run without it.
    """
    told_of = set(profiles[_KEYS].itertuples(index=False, name=None))
    failures = set(profiles.loc[profiles["total"].isna(), _KEYS].itertuples(index=False, name=None))
    failed: dict[str, list[str]] = {}
    lost: dict[str, list[str]] = {}
    crowded: set[Any] = set()  # cells without profiler of which an attempt ran beside another cell
    done = cells[(cells["outcome"] == "completed") & (cells["training_time"] > 0) & cells["resumed_step"].isna()]
    whats = {tuple(key): what for *key, what in named[[*_KEYS, "what"]].itertuples(index=False)}
    plain: dict[Any, list[float]] = {}
    under: dict[
        str, dict[str, dict[Any, list[float]]]
    ] = {}  # profiler -> configuration -> cell without profiler -> seconds
    for row in done.assign(machine=machines(done)).to_dict("records"):
        config = {name: value for name, value in json.loads(row["config"]).items() if name != KEY}
        place = tuple(None if pd.isna(row[name]) else row[name] for name in _ALIKE)
        alike = json.dumps(config, sort_keys=True), place
        if row.get("shared"):
            crowded.add(alike)
        if not isinstance(profiler := row["profile"], str):
            plain.setdefault(alike, []).append(row["training_time"])
            continue
        key = tuple(row[name] for name in _KEYS)
        if key not in told_of or key in failures:
            (failed if key in failures else lost).setdefault(profiler, []).append(str(row["cell"]))
            continue
        if profiler in PROFILERS and not PROFILERS[profiler].whole:
            continue
        what = whats[key].removesuffix(f" {KEY} {profiler}")
        under.setdefault(profiler, {}).setdefault(what, {}).setdefault(alike, []).append(row["training_time"])
    told = []
    for name in sorted(set(cells["profile"].dropna())):
        ways = under.get(name, {})
        beside = {alike for pairs in ways.values() for alike in pairs if alike in plain and alike in crowded}
        text = _cost(name, {what: _factors(pairs, plain) for what, pairs in ways.items()})
        told.append(text + _crowded(len(beside)) + _left_out(name, failed.get(name, [])) + _lost(lost.get(name, [])))
    return told


def _factors(pairs: Mapping[Any, list[float]], plain: Mapping[Any, list[float]]) -> list[float]:
    """Return time with the profiler / time without it, of each cell that ran with and without."""
    return [
        geometric_mean(np.array(times)).value / geometric_mean(np.array(plain[alike])).value
        for alike, times in pairs.items()
        if alike in plain
    ]


def _crowded(pairs: int) -> str:
    return (
        f" {counted(pairs, 'pair')} ran beside other cells on the same machine, which changes times, too."
        if pairs
        else ""
    )


def _left_out(name: str, cells: Sequence[str]) -> str:
    """Name the cells in which a profiler failed."""
    if not cells:
        return ""
    return f" Left out: {counted(len(cells), 'attempt')} in which {_title(name)} failed ({_in_words(cells)}). The table of profiles says why."


def _lost(cells: Sequence[str]) -> str:
    """Name the cells of which the dataset should have a profile and has none."""
    if not cells:
        return ""
    attempts = f"{counted(len(cells), 'attempt')} without a row in the dataset's table of profiles ({_in_words(cells)})"
    return f" Left out: {attempts}. The dataset is not whole: collect again."


def _in_words(cells: Sequence[str]) -> str:
    more = f" and {len(cells) - _MOST_COSTS} more" if len(cells) > _MOST_COSTS else ""
    return f"{'cell' if len(cells) == 1 else 'cells'} {', '.join(cells[:_MOST_COSTS])}{more}"


def _title(name: str) -> str:
    return PROFILERS[name].title if name in PROFILERS else name


def _cost(name: str, factors: Mapping[str, list[float]]) -> str:
    title = _title(name)
    if name in PROFILERS and not PROFILERS[name].whole:
        return f"The cost of {title} itself was not measured: it ran in the first second of a training only, and times are those of whole trainings."
    known = {what: values for what, values in sorted(factors.items()) if values}
    if not known:
        return f"The cost of {title} itself was not measured: no cell ran with and without it on the same machine."
    told = []
    for what, values in list(known.items())[:_MOST_COSTS]:
        factor = geometric_mean(np.array(values))
        interval = ""
        if factor.low is not None and factor.high is not None:
            shown = "" if factor.low > 1 or factor.high < 1 else ", so that no cost is shown"
            interval = f" ({INTERVAL} {span(factor)}{shown})"
        told.append(f"{in_short(factor.value)} times{interval} with {what}, from {counted(len(values), 'pair')}")
    more = f"; and {len(known) - _MOST_COSTS} more configurations" if len(known) > _MOST_COSTS else ""
    return (
        f"{title} itself: with it, the time after the first step is, relative to that without it, {'; '.join(told)}{more}. A pair is two cells that differ in nothing "
        "but the profiler."
    )


def _drawn(records: Sequence[Mapping[Any, Any]]) -> list[Drawn]:
    """Draw the first rank's profile of the first seed of each configuration and profiler."""
    drawn: dict[tuple[str, ...], Drawn] = {}
    for record in records:
        what = str(record["what"]).removesuffix(f" {KEY} {record['profiler']}")
        key = str(record["profiler"]), what, str(record["where"])
        if key in drawn or record["rank"] != 0 or not (record["functions"] or record["stacks"]):
            continue
        if len(drawn) == MOST_DRAWN:
            break
        seed = "" if pd.isna(record["seed"]) else f", seed {int(record['seed'])}"
        named = f"{_title(key[0])} of {what} on {record['where']}{seed}"
        total = None if pd.isna(record["total"]) else float(record["total"])
        svg = flame_graph(read_stacks(record["stacks"]), str(record["unit"]), named, total) if record["stacks"] else ""
        functions = sorted(read_functions(record["functions"] or ""), key=lambda function: -function.own)[:MOST_TOLD]
        rows = [
            [
                function.name,
                in_short(function.own),
                in_short(function.total),
                f"{function.calls:,}" if function.calls else "",
            ]
            for function in functions
        ]
        drawn[key] = Drawn(named, svg, rows, str(record["unit"]))
    return list(drawn.values())


def _row(profile: Mapping[Any, Any]) -> list[str]:
    size = "" if pd.isna(profile["bytes"]) else f"{profile['bytes'] / 1024:,.0f}"
    return [
        str(profile["what"]),
        str(profile["where"]),
        "" if pd.isna(profile["seed"]) else str(int(profile["seed"])),
        str(profile["rank"]),
        str(profile["cell"]),
        size,
        f"{profile['seconds']:.2f}",
        str(profile["file"] if isinstance(profile["file"], str) else profile["note"] or ""),
    ]
