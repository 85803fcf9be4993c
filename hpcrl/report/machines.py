"""What cells ran on: the machines in words, and which cells shared one with another cell at the same time."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

ATTEMPT = ["plan", "cell", "attempt"]
_TOGETHER = 0.02  # of a cell's own time, beside others: less than that is one cell's end and the next one's start
# Of the CPU time that a run itself used: less is the system's own and the sampler's.
_MOST_OF_OTHERS = 0.1
_CALIBRATION = {
    "calibration_matrix": "{:,.0f} GFLOP/s",
    "calibration_memory": "{:.1f} GB/s",
    "calibration_python": "{:,.0f} M turns/s",
    "calibration_environment": "{:,.0f} CartPole steps/s",
}


def side_by_side(cells: pd.DataFrame, samples: pd.DataFrame) -> pd.Series[bool]:
    """Tell of each attempt whether another one ran on one of its machines at the same time.

    What the whole machine did then is not the cell's own. Every attempt of a dataset counts, of whatever study.

    Args:
        cells: the dataset's table, whole. samples: its table, which knows the machines by name.
    """
    shared = pd.Series(False, index=cells.index)
    known = cells[cells["started"].notna() & (cells["wall_time"] > 0)]
    walls = known["wall_time"].to_dict()
    hosts = samples[[*ATTEMPT, "node"]].dropna().drop_duplicates()
    spans = known.reset_index()[["index", "cluster", *ATTEMPT, "started", "wall_time"]].merge(hosts, on=ATTEMPT)
    spans = spans.assign(end=spans["started"] + spans["wall_time"]).sort_values("started", kind="stable")
    for _, host in spans.groupby(["cluster", "node"], sort=False):
        # The one that ends last of those that began before: enough to know whether any of them still ran.
        last_end, last_index = float("-inf"), None
        for index, start, end, wall in host[["index", "started", "end", "wall_time"]].itertuples(index=False):
            if last_index is not None:
                together = min(end, last_end) - start
                if together > _TOGETHER * wall:
                    shared[index] = True
                if together > _TOGETHER * walls[last_index]:
                    shared[last_index] = True
            if end > last_end:
                last_end, last_index = end, index
    return shared


def not_alone(rows: pd.DataFrame) -> pd.Series[str]:
    """Return for each attempt what else ran on its machine, or an empty text.

    Another cell is told first, then CPU time of the machine that is not the attempt's own.

    Args:
        rows: attempts with the columns of `with_groups`, and `shared` (:func:`side_by_side`).
    """
    found = pd.Series("", index=rows.index, dtype=object)
    own = rows["cpu_seconds"] / (rows["wall_time"] * rows["threads"] * rows["nodes"].fillna(1))
    others = rows["machine_cpu_percent"] / 100 - own
    found[others > _MOST_OF_OTHERS * own] = "other programs ran on the machine at that time"
    found[rows["shared"]] = "two cells ran on one machine at once"
    return found


def in_one_line(rows: pd.DataFrame) -> str:
    """Say on which machines the cells ran."""
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
    """Return what was measured on what: cluster, environment, machine, its speed, and the software.

    Args:
        trains: whether the speed of an environment of reinforcement learning is of interest.
    """
    measured = {name: form for name, form in _CALIBRATION.items() if trains or name != "calibration_environment"}
    found = {}
    known = rows[rows["hardware"].notna()]
    for row in known.drop_duplicates(["cluster", "environment", "hardware", "versions"]).to_dict("records"):
        hardware, versions = json.loads(row["hardware"]), json.loads(row["versions"])
        machine = f"{_brief(hardware)}, Linux {hardware.get('kernel')}"
        if driver := hardware.get("gpu_driver"):
            machine += f", GPU driver {driver}"
        speed = ", ".join(form.format(row[name]) for name, form in measured.items() if not pd.isna(row[name]))
        software = ", ".join(f"{name} {version}" for name, version in versions.items())
        found[row["cluster"], row["environment"], machine] = {"speed": speed, "software": software}
    return [
        {"cluster": cluster, "environment": environment, "machine": machine, **said}
        for (cluster, environment, machine), said in sorted(found.items())
    ]


def measuring(rows: pd.DataFrame) -> str:
    """Say what measuring cost, all cells together, and how far nodes' clocks were apart."""
    known = rows[(rows["wall_time"] > 0) & rows["sampler_cpu_seconds"].notna()]
    if known.empty:
        return "no sampler ran."
    share = known["sampler_cpu_seconds"].sum() / (known["wall_time"] * known["nodes"]).sum()
    memory = known["sampler_memory"].max() / 2**20
    text = f"the sampler took {share:.2%} of one core of each node, its start included, and at most {memory:.0f} MiB"
    timed = rows[rows["phase_time"].notna()]
    if not timed.empty:
        text += f"; timing phases took {timed['phase_time'].sum() / timed['wall_time'].sum():.2%} of the wall time"
    if (apart := rows["clock_offset"].abs().max()) > 0:
        text += f"; nodes' clocks were at most {1e3 * apart:.1f} ms apart, for which samples' times are corrected"
    return f"{text}."
