"""Advice for the next requests, from the use of the requested resources, as in jobstats.

docs/user-guide.md lists the same thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from hpcrl.formats.runs import cores, hosts
from hpcrl.report.design import enumerated

CPU_LOW = 0.5  # of the requested cores
GPU_LOW = 0.15  # utilisation
MEMORY_LOW = 0.2  # of the requested memory, if that is more than
MEMORY_SMALL = 2.0  # GiB, which are not worth saving
TIME_LOW = 0.1  # of the time limit, if that is more than
TIME_SHORT = 10.0  # minutes
OTHERS_BUSY = 0.15  # of the whole machine, used by others
OTHERS_SHORT = 1.0  # seconds of a run: in less, the kernel's counters of the machine tell too little
START_LONG = 0.5  # of the wall time, before the first step
_MOST_NAMES = 3
_KEYS = ["cluster", "what", "where"]  # of a configuration in one place
_USED = (
    "cpus", "nodes", "hosts", "overcommit", "tasks", "gpus", "cpu_utilisation", "gpu_percent", "memory_mib", "memory", "time_limit", "wall_time", "cpu_seconds",
    "sampler_cpu_seconds", "threads", "machine_cpu_percent", "setup_time", "compile_time", "crowded",
)  # fmt: skip

_TEXTS = {
    "cpu": "{used} of the {asked} cores in use: request fewer cores.",
    "gpu": "the GPUs are busy {used} of the time: use a larger batch, more environments, or no GPU.",
    "memory": "at most {used} of the {asked} GiB of requested memory of a node in use: request less memory.",
    "time": "ended after {used} of the {asked} minutes requested: a shorter time limit starts sooner.",
    "others": "other jobs used {used} of the machine at the same time: times may be too long.",
    "start": "{used} of the time is before the first step: train longer, or compile less.",
}

# Other sentences if nothing is trained.
_OF_COMMANDS = {
    "gpu": "the GPUs are busy {used} of the time: give each more work, or use no GPU.",
    "start": "{used} of the time is before the first step: longer runs waste less.",
}


@dataclass(frozen=True)
class _Waste:
    kind: str
    used: float
    asked: float = 0.0


def advice(rows: pd.DataFrame, trains: bool = True) -> list[str]:
    """Return a sentence for each resource that some configurations used little, with their names.

    Args:
        rows: attempts with the columns of `with_groups`.
    """
    done = rows.loc[(rows["outcome"] == "completed") & rows["wall_time"].notna(), [*_KEYS, *_USED]]
    # A seed that reached a limit needs it, whatever the completed ones used.
    reached = {
        "memory": rows["outcome"] == "oom",
        "time": (rows["outcome"] == "timeout") | rows["resumed_step"].notna(),
    }
    needed = {kind: set(rows.loc[at, _KEYS].itertuples(index=False, name=None)) for kind, at in reached.items()}
    wastes: dict[str, list[tuple[str, _Waste]]] = {}
    every = 0
    several = done["cluster"].nunique() > 1
    for (cluster, what, where), group in done.groupby(_KEYS, sort=True):
        every += 1
        for waste in _wasted(group):
            if (cluster, what, where) in needed.get(waste.kind, ()):
                continue
            wastes.setdefault(waste.kind, []).append((f"{what} ({where}{f', {cluster}' if several else ''})", waste))
    texts = _TEXTS if trains else _TEXTS | _OF_COMMANDS
    return [_sentence(kind, texts[kind], wastes[kind], every) for kind in texts if kind in wastes]


def _sentence(kind: str, text: str, found: list[tuple[str, _Waste]], every: int) -> str:
    names = [name for name, _ in found]
    who = enumerated(names)
    if len(names) > _MOST_NAMES:
        who = f"All {every:,} configurations" if len(names) == every else f"{len(names):,} of {every:,} configurations"
    used = [waste.used for _, waste in found]
    if kind in ("cpu", "gpu", "others", "start"):
        span = _span(used, "{:.0%}")
    else:  # up: no use of a resource is nothing
        span = _span([math.ceil(10 * value) / 10 for value in used], "{:.1f}")
    return f"{who}: {text.format(used=span, asked=_span([waste.asked for _, waste in found], '{:.0f}'))}"


def _span(values: list[float], form: str) -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def _wasted(group: pd.DataFrame) -> Iterator[_Waste]:
    """Give the little-used resources of one configuration in one place: means over seeds; for limits, the maximum over seeds."""
    first = group.iloc[0]
    asked, used = float(cores(group).iloc[0]), float(group["cpu_utilisation"].mean())
    if asked > 1 and used < CPU_LOW and not first["crowded"]:  # its machine does not have them
        yield _Waste("cpu", used, asked)
    gpu = float(group["gpu_percent"].mean()) / 100
    if first["gpus"] > 0 and gpu < GPU_LOW:
        yield _Waste("gpu", gpu)
    ranks = math.ceil(first["tasks"] / first["nodes"])  # the peak is that of one node
    asked, peak = float(first["memory_mib"] * ranks) / 1024, float(group["memory"].max()) / 1024**3
    if asked > MEMORY_SMALL and peak < MEMORY_LOW * asked:
        yield _Waste("memory", peak, asked)
    limit, longest = float(first["time_limit"]) / 60, float(group["wall_time"].max()) / 60
    if limit > TIME_SHORT and longest < TIME_LOW * limit:
        yield _Waste("time", longest, limit)
    own = (group["cpu_seconds"] + group["sampler_cpu_seconds"].fillna(0)) / (
        group["wall_time"] * group["threads"] * hosts(group)
    )
    if (
        group["wall_time"].mean() >= OTHERS_SHORT
        and (others := float((group["machine_cpu_percent"] / 100 - own).mean())) > OTHERS_BUSY
    ):
        yield _Waste("others", others)
    before = (group["setup_time"].fillna(0) + group["compile_time"].fillna(0)) / group["wall_time"]
    if (start := float(before.mean())) > START_LONG:
        yield _Waste("start", start)
