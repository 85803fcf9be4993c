"""Which use of more cores pays: threads of one process, processes that step the environments, or ranks, at equal numbers of cores."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hpcrl.formats.runs import cores
from hpcrl.report.design import counted, display, natural
from hpcrl.report.intervals import with_interval
from hpcrl.report.statistics import Estimate, Values, geometric_mean, ratio

_THREADS = "threads of one process"
_PROCESSES = ("processes", "pipes")  # values of `stepping` that use further cores
_STEPPING = "stepping"
_WORKERS = "workers"  # how many processes step the environments
_RESOURCES = ["tasks", "cpus", "parallelism", "nodes", "overcommit"]
Uses = Mapping[int, Mapping[str, Values]]  # number of cores -> use -> training times


@dataclass(frozen=True)
class Fastest:
    """The fastest use of a number of cores.

    Args:
        lead: its speed relative to that of the `second`. gain: relative to the fewest cores of the study; None for these themselves.
    """

    cores: int
    name: str
    second: str
    lead: Estimate
    gain: Estimate | None


def in_words(rows: pd.DataFrame) -> list[str]:
    """Return one sentence for each configuration that uses the same number of cores of one kind of machine in several ways, over completed runs on CPU cores.

    Runs that had more cores than their machine has are left out.

    Args:
        rows: attempts of one study with the columns of `with_groups`.
    """
    done = rows[(rows["outcome"] == "completed") & (rows["training_time"] > 0) & (rows["gpus"].fillna(0) == 0)]
    done = done[done["framework"].notna() & done["cpus"].notna() & ~done["crowded"]]
    if done.empty:
        return []
    configs = [json.loads(text) for text in done["config"]]
    named = done.assign(
        cores=cores(done).astype(int),
        use=[_use(config, row) for config, row in zip(configs, done[_RESOURCES].to_dict("records"), strict=True)],
        rest=[
            json.dumps(_rest(config) | {"machine": machine}, sort_keys=True)
            for config, machine in zip(configs, done["machine"], strict=True)
        ],
    )
    several = named.groupby(["cluster", "rest", "cores"])["use"].transform("nunique") > 1
    compared = named.groupby(["cluster", "rest"])["use"].transform(lambda use: several[use.index].any())
    named = named[compared.astype(bool)]
    told = _differing([json.loads(text) for text in named["rest"].unique()])
    texts = []
    for (cluster, rest), group in named.groupby(["cluster", "rest"], sort=True):
        place = f" on {cluster}" if named["cluster"].nunique() > 1 else ""
        uses = {
            int(own["cores"].iloc[0]): {
                str(use): np.asarray(times, float) for use, times in own.groupby("use")["training_time"]
            }
            for _, own in group.groupby("cores")
        }
        texts.append(_sentence(f"{_label(json.loads(str(rest)), told)}{place}", uses))
    return sorted(texts, key=natural)


def fastest(uses: Uses) -> tuple[list[Fastest], int]:
    """Return the fastest use of each number of cores that has several, and for how many comparisons at once their intervals hold."""
    fewest = min(uses)
    # The fastest ones were chosen by the same runs: any two uses could have been compared, and any one with any use of the fewest cores.
    several = {number: own for number, own in uses.items() if len(own) > 1}
    comparisons = sum(
        math.comb(len(own), 2) + (number != fewest) * len(own) * len(uses[fewest]) for number, own in several.items()
    )
    base = min(uses[fewest].values(), key=_mean)
    found = []
    for number, own in sorted(several.items()):
        first, second, *_ = sorted(own, key=lambda use: _mean(own[use]))
        gain = None if number == fewest else ratio(base, own[first], comparisons)
        found.append(Fastest(number, first, second, ratio(own[second], own[first], comparisons), gain))
    return found, comparisons


def _sentence(label: str, uses: Uses) -> str:
    found, comparisons = fastest(uses)
    fewest = counted(min(uses), "core")
    parts = []
    for best in found:
        speed = f"{with_interval(best.lead)} times as fast as {best.second}"
        shown = best.lead.low is not None and best.lead.low > 1
        text = (
            f"{best.name} train fastest, {speed}"
            if shown
            else f"no use is shown to be the fastest: {best.name} are {speed}"
        )
        if best.gain:
            text += f", and {with_interval(best.gain)} times as fast as {fewest}"
            if best.gain.high is not None and best.gain.high < 1:
                text += ": more cores do not pay"
            elif best.gain.low is not None and best.gain.low <= 1:
                text += ": it is not shown that more cores pay"
        parts.append(f"of {counted(best.cores, 'core')}, {text}")
    at_once = f" The intervals hold for all {comparisons} comparisons at once." if comparisons > 1 else ""
    return f"Use of cores, {label}: {'; '.join(parts)}.{at_once}"


def _use(config: Mapping[str, Any], row: Mapping[Any, Any]) -> str:
    """Name what a run uses its cores for."""
    tasks = 1 if pd.isna(row["tasks"]) else int(row["tasks"])
    stepping = config.get(_STEPPING)
    each = ", one each" if config.get(_WORKERS) == "environments" else ""
    inside = f"environments in {stepping}{each}" if stepping in _PROCESSES else _THREADS
    if tasks == 1:
        return inside
    way = display(row["parallelism"]) if row["parallelism"] not in (None, "none") else ""
    sharing = not pd.isna(row["overcommit"]) and bool(row["overcommit"])
    each = " that share them" if sharing else "" if row["cpus"] == 1 else f" with {int(row['cpus'])} cores each"
    nodes = 1 if pd.isna(row["nodes"]) else int(row["nodes"])
    where = f" on {nodes} nodes" if nodes > 1 else ""
    also = f" and {inside}" if stepping in _PROCESSES else ""
    return f"{tasks} ranks{f' ({way})' if way else ''}{each}{where}{also}"


def _rest(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what does not say how cores are used."""
    rest = {name: value for name, value in config.items() if name not in ("seed", _STEPPING, _WORKERS)}
    stepping = config.get(_STEPPING, "sync")
    return rest if stepping in (None, "sync", *_PROCESSES) else rest | {_STEPPING: stepping}


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the axes that have several values, after those that name a configuration."""
    names = [name for config in configs for name in config]
    first = ("algorithm", "framework", "execution")
    others = [name for name in names if name not in first and len({str(config.get(name)) for config in configs}) > 1]
    return list(dict.fromkeys([*(name for name in first if name in names), *others]))


def _label(config: Mapping[str, Any], names: Sequence[str]) -> str:
    words = {name: display(value) for name in names if (value := config.get(name)) is not None}
    plain = ("algorithm", "framework", "execution")
    return " ".join(word if name in plain else f"{name.replace('_', ' ')} {word}" for name, word in words.items())


def _mean(times: Values) -> float:
    return geometric_mean(times).value
