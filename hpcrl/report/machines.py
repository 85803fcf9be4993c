"""The machines of cells in words, and the cells that shared a machine with another cell at the same time."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from hpcrl.errors import count
from hpcrl.formats.runs import cores, host_of, hosts

ATTEMPT = ["plan", "cell", "attempt"]
# Of a cell's time beside another one, and twice that beside all others together; less is only the end of one cell and the start of the next.
_TOGETHER = 0.02
# Of the run's own CPU time; less is that of the system and the sampler.
_MOST_OF_OTHERS = 0.1
BUSY_CORES = 0.5  # cores in use from which on a machine was not idle
UNEVEN = 1.25  # ratio of calibrations from which on the times of cells do not compare
_CALIBRATION = {
    "calibration_matrix": "{:,.0f} GFLOP/s on the cell's cores",
    "calibration_memory": "{:.1f} GB/s",
    "calibration_python": "{:,.0f} M turns/s",
    "calibration_environment": "{:,.0f} CartPole steps/s",
}


def side_by_side(cells: pd.DataFrame, samples: pd.DataFrame) -> pd.Series[bool]:
    """Tell for each attempt whether another one ran on one of its machines at the same time.

    Values of the whole machine are then not the cell's own. The attempts of all studies of a dataset count. A machine is a node,
    or a host: a private Slurm has several nodes on one host, and a host may belong to two clusters.

    Args:
        cells: the complete table of the dataset. samples: its table, which has the names of the machines.
    """
    shared = pd.Series(False, index=cells.index)
    known = cells[cells["started"].notna() & (cells["wall_time"] > 0)]
    walls = known["wall_time"].to_dict()
    nodes = samples[[*ATTEMPT, "node"]].dropna().drop_duplicates()
    spans = known.reset_index()[["index", "cluster", *ATTEMPT, "started", "wall_time", "hardware"]]
    spans = spans.assign(end=spans["started"] + spans["wall_time"]).sort_values("started", kind="stable")
    names = {text: host_of(json.loads(text)) for text in spans["hardware"].dropna().unique()}
    by_node = spans.merge(nodes, on=ATTEMPT).groupby(["cluster", "node"], sort=False)
    by_host = spans.assign(host=spans["hardware"].map(names)).groupby("host", sort=False)
    for _, host in (*by_node, *by_host):
        # The last end among those that began before is enough to know whether any of them still ran.
        last_end, last_index = float("-inf"), None
        beside: dict[Any, list[float]] = {}
        for index, start, end in host[["index", "started", "end"]].itertuples(index=False):
            if (together := min(end, last_end) - start) > 0:
                beside.setdefault(index, []).append(together)
                beside.setdefault(last_index, []).append(together)
            if end > last_end:
                last_end, last_index = end, index
        for index, times in beside.items():
            if max(times) > _TOGETHER * walls[index] or sum(times) > 2 * _TOGETHER * walls[index]:
                shared[index] = True
    return shared


def not_alone(rows: pd.DataFrame) -> pd.Series[str]:
    """Return for each attempt which other work ran on its machine, or an empty text.

    Another cell comes first, then CPU time of the machine that is not the attempt's own.

    Args:
        rows: attempts with the columns of `with_groups`, and `shared` (:func:`side_by_side`).
    """
    notes = pd.Series("", index=rows.index, dtype=object)
    # The CPU time of a requeued cell is not known as a whole; its use is, in the last attempt, as that of the machine.
    own = rows["cpu_utilisation"] * cores(rows) / (rows["threads"] * hosts(rows))
    others = rows["machine_cpu_percent"] / 100 - own
    notes[others > _MOST_OF_OTHERS * own] = "other programs ran on the machine at that time"
    notes[rows["shared"]] = "two cells ran on one machine at the same time"
    return notes


def in_one_line(rows: pd.DataFrame) -> str:
    """Return the machines of the cells in words."""
    said = []
    for cluster, group in rows[rows["hardware"].notna()].groupby("cluster", sort=True):
        kinds = list(dict.fromkeys(_brief(json.loads(text)) for text in group["hardware"].unique()))
        more = f" and {len(kinds) - 2} more kinds" if len(kinds) > 2 else ""
        said.append(f"{cluster}: {'; '.join(kinds[:2])}{more}")
    return " · ".join(said)


def _brief(hardware: dict[str, Any]) -> str:
    gpus = ", ".join(hardware.get("gpus") or []) or "no GPU"
    memory = f"{(hardware.get('memory') or 0) / 1024**3:.0f} GiB"
    return f"{hardware.get('cpu')}, {hardware.get('threads')} threads, {memory}, {gpus}"


def provenance(rows: pd.DataFrame, trains: bool = True) -> list[dict[str, str]]:
    """Return the provenance of the measurements: cluster, environment, machine, its load when idle, its speed, and the software.

    Args:
        trains: whether to include the speed and the version of an environment of reinforcement learning.
    """
    measured = {name: form for name, form in _CALIBRATION.items() if trains or name != "calibration_environment"}
    software: dict[tuple[str, str, str], dict[str, None]] = {}
    idle: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    speeds: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    known = rows[rows["hardware"].notna()]
    for row in known.drop_duplicates(
        ["cluster", "environment", "hardware", "versions", "idle_cpu_percent", "idle_memory_percent", *measured]
    ).to_dict("records"):
        hardware, versions = json.loads(row["hardware"]), json.loads(row["versions"])
        machine = f"{_brief(hardware)}, {_system(hardware)}"
        if driver := hardware.get("gpu_driver"):
            machine += f", GPU driver {driver}"
        key = row["cluster"], row["environment"], machine
        told = ", ".join(f"{name} {version}" for name, version in versions.items() if trains or name != "gymnasium")
        software.setdefault(key, {})[told] = None
        idle.setdefault(key, []).append((row["idle_cpu_percent"], row["idle_memory_percent"]))
        speeds.setdefault(key, []).append({name: row[name] for name in measured if not pd.isna(row[name])})
    return [
        {
            "cluster": key[0],
            "environment": key[1],
            "machine": key[2],
            "idle": _idle(idle[key]),
            "speed": _speed(speeds[key]),
            "software": " · or: ".join(software[key]),
        }
        for key in sorted(software)
    ]


def _speed(measured: list[dict[str, float]]) -> str:
    """Return the calibrations of the machines of one kind: lowest and highest, where their texts differ."""
    texts = []
    for name, form in _CALIBRATION.items():
        if known := [values[name] for values in measured if name in values]:
            low, high = form.format(min(known)), form.format(max(known))
            texts.append(high if low == high else f"{low.partition(' ')[0]} to {high}")
    return ", ".join(texts)


def uneven(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each machine that the calibrations before the cells found more than :data:`UNEVEN` times as fast at one time as at another.

    A machine that others share is slow at times, and two may have one name: that of Slurm's nodes is their kind. Cells without a calibration are not judged.

    Args:
        rows: attempts with the columns of `with_groups`.
    """
    said = []
    column = "calibration_python"
    known = rows[(rows[column] > 0) & rows["hardware"].notna()]
    # A loop has another speed in another version of Python.
    python = known["versions"].map(lambda text: json.loads(text).get("python"), na_action="ignore")
    keys = ["cluster", "machine", "python"]
    for (cluster, machine, _), speeds in known.assign(python=python).groupby(keys, sort=True, dropna=False)[column]:
        if (ratio := speeds.max() / speeds.min()) > UNEVEN:
            low, high = (_CALIBRATION[column].format(value) for value in (speeds.min(), speeds.max()))
            hosts = {json.loads(text).get("host") for text in known.loc[speeds.index, "hardware"]}
            when = "at one time as at another" if len(hosts) == 1 else "on one node or at one time as on another"
            apart = "times" if len(hosts) == 1 else "nodes or times"
            said.append(
                f"{cluster}, {machine}: by the calibrations before its cells the machine was {ratio:.1f} times as fast {when} "
                f"({low.partition(' ')[0]} to {high}): times of cells from different {apart} do not compare."
            )
    return said


def not_idle(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each machine on which more than :data:`BUSY_CORES` were in use when it should have been idle.

    Args:
        rows: attempts with the columns of `with_groups`.
    """
    said = []
    busy = rows["idle_cpu_percent"] / 100 * rows["threads"]
    known = rows.assign(busy=busy)[busy > BUSY_CORES]
    for (cluster, machine), cells in known.groupby(["cluster", "machine"], sort=True):
        said.append(
            f"{cluster}, {machine}: other programs used up to {cells['busy'].max():.1f} of its {cells['threads'].iloc[0]:.0f} threads when the "
            f"idle machine was measured, before {count(len(cells), 'cell')}: what these used above idle is not known if those programs ended."
        )
    return said


def _system(hardware: dict[str, Any]) -> str:
    """Return operating system, kernel, and kind of virtual machine; records up to 0.1.0 have the kernel only."""
    system = " ".join(text for name in ("os", "os_version") if (text := hardware.get(name)))
    kernel = f"Linux {hardware.get('kernel')}"
    virtual = hardware.get("virtual")
    return ", ".join([*([system] if system else []), kernel, *([virtual] if virtual not in (None, "no") else [])])


def _idle(measured: list[tuple[float, float]]) -> str:
    """Return CPU and memory of the idle machines of one kind."""
    texts = []
    for name, values in zip(("CPU", "memory"), zip(*measured, strict=True), strict=True):
        if known := [value for value in values if not pd.isna(value)]:
            low, high = f"{min(known):.1f}", f"{max(known):.1f}"
            texts.append(f"{name} {low} %" if low == high else f"{name} {low} to {high} %")
    return ", ".join(texts)


def measuring(rows: pd.DataFrame) -> str:
    """Return the cost of measuring, for all cells together, and the maximum difference of the nodes' clocks."""
    known = rows[(rows["wall_time"] > 0) & rows["sampler_cpu_seconds"].notna()]
    if known.empty:
        ran = rows["sampler_cpu_seconds"].notna().any()
        return "it is not known of requeued cells." if ran else "no sampler ran."
    share = known["sampler_cpu_seconds"].sum() / (known["wall_time"] * known["nodes"]).sum()
    memory = known["sampler_memory"].max() / 2**20
    text = f"the sampler took {share:.2%} of one core of each node, including its start, and at most {memory:.0f} MiB"
    timed = rows[rows["phase_time"].notna() & (rows["wall_time"] > 0)]
    if not timed.empty:
        text += f"; timing phases took {timed['phase_time'].sum() / timed['wall_time'].sum():.2%} of the wall time"
    if (apart := rows["clock_offset"].abs().max()) > 0:
        text += f"; the nodes' clocks differed by at most {1e3 * apart:.1f} ms, and the times of samples are corrected for it"
    return f"{text}."
