"""The view ``runs`` of a dataset: what completed, one row for each cell of a study, with a column for each of its axes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

NAME = "runs"
# Of a requeued cell, the record of the last attempt has only the rest of these.
OF_ONE_ATTEMPT = ["wall_time", "cpu_seconds", "energy", "cpu_energy", "slurm_energy"]
# column -> unit, meaning
ADDED = {
    "machine": (
        "",
        "machine that the cell ran on: CPU, threads, GPUs if it asked for some, and without Slurm the host",
    ),
    "repeats": (
        "",
        "number of times that this cell completed on this kind of machine of this cluster, in all studies and including this run",
    ),
}


def runs(cells: pandas.DataFrame) -> pandas.DataFrame:
    """Return the runs of a dataset, in the order of its cells.

    Repeats of a cell are not further seeds: in each study, on each kind of machine, the newest run represents the cell. A cell
    that two studies share has a row in both. Attempts under a
    profiler are left out, because their times include its cost. What is not known of the whole run of a requeued cell is missing.

    Args:
        cells: the table ``cells``.
    """
    import pandas as pd

    done = cells[(cells["outcome"] == "completed") & cells["profile"].isna()]
    done = done.assign(machine=machines(done))
    keys = ["cluster", "machine", "cell"]
    repeats = done.groupby(keys)["attempt"].transform("size")
    newest = (
        done.assign(repeats=repeats)
        .sort_values("started", kind="stable")
        .drop_duplicates(["study", *keys], keep="last")
        .sort_index()
    )
    axes = pd.DataFrame([_flat(json.loads(text)) for text in newest["config"]], index=newest.index)
    axes = axes.drop(columns=[name for name in ("framework", "execution", "seed", "tensorboard") if name in axes])
    axes = axes.rename(columns={name: f"axis_{name}" for name in axes.columns if name in newest.columns})
    kept = newest.drop(columns=["config", "latest"]).assign(goal_wall_time=goal_wall_time(newest))
    kept[OF_ONE_ATTEMPT] = kept[OF_ONE_ATTEMPT].mask(kept["resumed_step"].notna())
    return pd.concat([kept, axes.convert_dtypes()], axis=1).reset_index(drop=True)


def cores(cells: pandas.DataFrame) -> pandas.Series[float]:
    """Return how many cores each attempt asked for; with `overcommit` the ranks of a node share its cores."""
    sharing = cells["overcommit"].fillna(value=False).astype(bool)
    return cells["cpus"] * cells["tasks"].fillna(1).where(~sharing, cells["nodes"].fillna(1))


def host_of(hardware: Mapping[str, Any]) -> str | None:
    """Return what distinguishes a host from those of other sites with its name; None for records without a host."""
    if not hardware.get("host"):
        return None
    return json.dumps([hardware.get(name) for name in ("host", "cpu", "threads", "memory", "kernel")])


def hosts(cells: pandas.DataFrame) -> pandas.Series[float]:
    """Return on how many machines each attempt ran: as many as it has nodes, if that is not known."""
    return cells["hosts"].fillna(cells["nodes"]).fillna(1).astype(float)


def machines(cells: pandas.DataFrame, with_gpus: bool = True) -> pandas.Series[str]:
    """Name the machine of each attempt by what makes its times comparable; empty if nothing is known.

    Nodes of a cluster with equal hardware are one machine; without Slurm each host is a separate machine.

    Args:
        with_gpus: whether its GPUs are in the name of an attempt that used some.
    """
    import pandas as pd

    facts = {text: json.loads(text) for text in cells["hardware"].dropna().unique()}

    def name(hardware: object, gpus: float, attempt: str) -> str:
        if (known := facts.get(hardware)) is None:
            return ""
        parts = [str(known.get("cpu")), f"{known.get('threads')} threads"]
        if with_gpus and gpus > 0:
            parts.append(" + ".join(dict.fromkeys(known.get("gpus") or ["no GPU"])))
        if attempt.startswith("local-"):
            parts.append(f"host {known.get('host')}")
        return ", ".join(parts)

    rows = zip(cells["hardware"], cells["gpus"], cells["attempt"], strict=True)
    return pd.Series([name(*row) for row in rows], cells.index, dtype=str)


def goal_wall_time(cells: pandas.DataFrame) -> pandas.Series[float]:
    """Return the seconds from the start of each record to the goal; for records up to format 3 the sum of its parts."""
    parts = cells["setup_time"] + cells["compile_time"].fillna(0) + cells["goal_time"]
    return cells["goal_wall_time"].fillna(parts)


def _flat(config: dict[str, object]) -> dict[str, object]:
    return {name: json.dumps(value) if isinstance(value, dict) else value for name, value in config.items()}
