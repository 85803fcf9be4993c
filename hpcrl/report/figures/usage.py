"""What was used: processors, memory, GPUs, energy, and where the time went."""

from __future__ import annotations

import altair as alt
import pandas as pd

from hpcrl.report.figures.drawing import Figure, bands, dots_and_means, stacked
from hpcrl.report.groups import usage_curves

_USAGE = (
    ("cpu_percent", "CPU of the job (% of its cores)"),
    ("machine_cpu_percent", "CPU of the whole machine (%)"),
    ("rss_gib", "RAM of the job, peak (GiB)"),
    ("machine_memory_percent", "RAM of the whole machine (%)"),
    ("gpu_percent", "GPU (%)"),
    ("gpu_memory_gib", "GPU memory, peak (GiB)"),
)


def figures(rows: pd.DataFrame, samples: pd.DataFrame, phases: pd.DataFrame) -> list[Figure | None]:
    rows = rows.assign(
        rss_gib=rows["rss_peak"] / 1024**3,
        cpu_percent=rows["cpu_utilisation"] * 100,
        gpu_memory_gib=rows["gpu_memory_peak"] / 1024**3,
    )
    return [
        _utilisation(rows),
        _over_time(rows, samples, "cpu", "CPU of the job (cores in use)"),
        _over_time(rows, samples, "memory", "RAM of the job (GiB)"),
        _over_time(rows, samples, "gpu", "utilisation of the job's GPUs (%)"),
        _phases(rows, phases),
        _energy(rows),
    ]


def _utilisation(rows: pd.DataFrame) -> Figure | None:
    panels = [
        dots_and_means(rows[rows[column].notna()], rows, column, title, width=250)
        for column, title in _USAGE
        if rows[column].notna().any()
    ]
    if not panels:
        return None
    text = "The job's own processes beside the whole machine; bars are means over seeds, dots are seeds."
    if not rows["gpu_percent"].notna().any():
        text += " No GPU was read."
    return Figure("utilisation", "CPU, RAM and GPU utilisation", text, alt.concat(*panels, columns=2, spacing=28))


def _over_time(rows: pd.DataFrame, samples: pd.DataFrame, what: str, title: str) -> Figure | None:
    data = usage_curves(rows, samples, what)
    if data.empty:
        return None
    name = {"cpu": "CPU against time", "memory": "Memory against time", "gpu": "GPU against time"}[what]
    whose = "GPUs" if what == "gpu" else "own processes"
    text = f"The job's {whose} on its first node, from the start of the record: imports and compiling are in it. Lines are means over seeds, bands span the seeds."
    return Figure(f"{what}-by-time", name, text, bands(data, "wall time (s)", title, y_format=".2f", logarithmic=True))


# phase -> name and colour
_PHASES = {
    "env_step": ("environment", "#56B4E9"),
    "act": ("acting", "#0072B2"),
    "replay": ("replay", "#009E73"),
    "transfer": ("transfer", "#F0E442"),
    "update": ("update", "#D55E00"),
    "communicate": ("communication", "#CC79A7"),
    "fused": ("compiled loop", "#8C510A"),
    "evaluate": ("evaluation", "#E69F00"),
    "other": ("other", "#BBBBBB"),
}


def _phases(rows: pd.DataFrame, phases: pd.DataFrame) -> Figure | None:
    keys = ["plan", "cell", "attempt"]
    own = phases[(phases["rank"] == 0) & phases["phase"].isin(_PHASES)]
    whole = rows[rows["outcome"] == "completed"]
    long = own.merge(whole[[*keys, "line"]], on=keys).rename(columns={"phase": "part", "seconds": "value"})
    if long.empty:
        return None
    # A phase that a seed never entered took it no time.
    wide = long.pivot_table(index=["line", *keys], columns="part", values="value", fill_value=0.0)
    long = wide.reset_index().melt(id_vars=["line", *keys], var_name="part")
    used = {phase: look for phase, look in _PHASES.items() if phase in set(long["part"])}
    chart = stacked(long, rows, used, "time (s), mean over seeds")
    text = "Training time by phase, of the first rank of completed cells. Work that a GPU still has to do is counted where it is waited for, unless the study says precise_phases."
    return Figure("phases", "Where the time goes", text, chart)


def _energy(rows: pd.DataFrame) -> Figure | None:
    known = rows[rows["energy"].notna()]
    if known.empty:
        return None
    panels = [dots_and_means(known, rows, "energy", "energy of the GPUs (J)", width=250)]
    stepped = known[known["steps"] > 0]  # a command need not report any
    if not stepped.empty:
        stepped = stepped.assign(per_steps=stepped["energy"] / stepped["steps"] * 1000)
        panels.append(dots_and_means(stepped, rows, "per_steps", "energy of the GPUs per 1,000 steps (J)", width=250))
    text = "NVML's energy counters over the whole record, of the GPUs alone: processors and memory are not in it."
    return Figure("energy", "Energy", text, alt.concat(*panels, columns=2, spacing=28))
