"""Figures of usage: processors, memory, GPUs, energy."""

from __future__ import annotations

import pandas as pd

from hpcrl.report.curves import band_in_words, left_out, usage
from hpcrl.report.figures.drawing import Figure, legend, ordered
from hpcrl.report.figures.marks import Centre, bands, dots, in_words
from hpcrl.report.score import Score

_OWN: tuple[tuple[str, str, Centre], ...] = (
    ("cpu_percent", "CPU of the job (% of its cores)", "median"),
    ("memory_gib", "RAM of the job, peak (GiB)", "median"),
    ("gpu_percent", "GPU (%)", "median"),
    ("gpu_memory_gib", "GPU memory, peak (GiB)", "median"),
)
_MACHINE: tuple[tuple[str, str, Centre], ...] = (
    ("machine_cpu_percent", "CPU of the whole machine (%)", "median"),
    ("machine_memory_percent", "RAM of the whole machine (%)", "median"),
)
SHARED = "Cells shared a machine, so the values of the whole machine do not belong to one cell: its CPU and RAM are not drawn."


def figures(rows: pd.DataFrame, samples: pd.DataFrame, score: Score) -> list[Figure | None]:
    rows = rows.assign(
        memory_gib=rows["memory"] / 1024**3,
        cpu_percent=rows["cpu_utilisation"] * 100,
        gpu_memory_gib=rows["gpu_memory_peak"] / 1024**3,
    )
    return [
        _utilisation(rows),
        _over_time(rows, samples, "cpu", "CPU of the job (cores in use)", score.trains),
        _over_time(rows, samples, "memory", "RAM of the job (GiB)", score.trains),
        _over_time(rows, samples, "gpu", "utilisation of the job's GPUs (%)", score.trains),
        _energy(rows),
    ]


def _utilisation(rows: pd.DataFrame) -> Figure | None:
    shared = bool(rows["shared"].any())
    columns = [*_OWN, *(() if shared else _MACHINE)]
    names = ordered(rows["line"])
    panels = tuple(
        dots(
            rows[rows[column].notna()],
            column,
            title,
            centre,
            names=names,
            panel=title,
            domain=[0.0, max(100.0, float(rows[column].max()))] if "%" in title else None,
        )
        for column, title, centre in columns
        if rows[column].notna().any()
    )
    if not panels:
        return None
    text = f"The job's own processes{'' if shared else ' and the whole machine'}. {in_words(rows, 'cpu_percent', 'median')}"
    if shared:
        text += f" {SHARED}"
    if not rows["gpu_percent"].notna().any():
        text += " No GPU was measured."
    return Figure("utilisation", "CPU, RAM and GPU utilisation", text, panels, legend(rows))


def _over_time(rows: pd.DataFrame, samples: pd.DataFrame, what: str, title: str, trains: bool) -> Figure | None:
    data = usage(rows, samples, what)
    if data.empty:
        return None
    name = {"cpu": "CPU against time", "memory": "Memory against time", "gpu": "GPU against time"}[what]
    whose = "GPUs" if what == "gpu" else "own processes"
    start = ", including imports and compiling" if trains else ""
    text = f"The job's {whose} on its first node{start}. {band_in_words(data)}{left_out(rows)}"
    panels = bands(data, "time since the record's start (s)", title, logarithmic=True)
    return Figure(f"{what}-by-time", name, text, panels, legend(data, lines=True))


def _energy(rows: pd.DataFrame) -> Figure | None:
    known = rows[rows["energy"].notna() & (rows["outcome"] == "completed")]
    if known.empty:
        return None
    names = ordered(known["line"])
    title = "energy of the GPUs (J)"
    panels = [dots(known, "energy", title, "geometric mean", names=names, panel=title)]
    stepped = known[known["steps"] > 0]  # a command may report none
    if not stepped.empty:
        stepped = stepped.assign(per_steps=stepped["energy"] / stepped["steps"] * 1000)
        title = "energy of the GPUs per 1,000 steps (J)"
        panels.append(dots(stepped, "per_steps", title, "geometric mean", names=names, panel=title))
    text = (
        "NVML's energy counters over the whole record, of the GPUs only, without processors and memory. Completed cells. "
        + in_words(known, "energy", "geometric mean")
    )
    return Figure("energy", "Energy", text, tuple(panels), legend(known))
