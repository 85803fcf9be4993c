"""The figures of the published studies, drawn from one's own runs, with what was not run greyed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import altair as alt
import pandas as pd

from hpcrl.report.figures.drawing import COLOURS, GREY, Figure

_FRAMEWORKS = {"jax": "JAX", "tensorflow": "TensorFlow", "mxnet": "MXNet"}
_MODES = ("lazy", "eager")
_PLACES = ("CPU", "GPU", "Horovod")
_WIDTH, _HEIGHT = 460, 170
_FINAL, _TRAINING = ("final_score", "final score"), ("training_time", "training time (s)")
# What the paper calls utilisation is of the whole machine; the job's own stands beside it in other figures.
_UTILISATION = (
    ("machine_cpu_percent", "CPU"),
    ("machine_memory_percent", "RAM"),
    ("gpu_percent", "GPU"),
)


def figures(paper: str, rows: pd.DataFrame, goal: float | None) -> list[Figure]:
    """Draw a paper's figures; none for a study that names no known one."""
    return list(_sol(rows, goal)) if paper == "sol-dqn-frameworks" else []


def _sol(rows: pd.DataFrame, goal: float | None) -> Iterator[Figure]:
    """Draw the 13 figures of "Comparison of Deep-Q Network for Reinforcement Learning using Multi-stage Frameworks"."""
    tasks = _tasks(rows)
    for number, (framework, name) in enumerate(_FRAMEWORKS.items()):
        own = tasks[tasks["framework"] == framework]
        first = 1 + 3 * number
        yield _figure(first, f"Final score attained by {name}", _bars(own, _FINAL, goal), own)
        panels: list[Any] = [
            _bars(own, (column, f"{title} utilisation (%)"), None, 200) for column, title in _UTILISATION
        ]
        both = alt.concat(*panels, columns=2, spacing=24)
        yield _figure(first + 1, f"Average resource utilization by {name}", both, own)
        yield _figure(first + 2, f"Training times by {name}", _bars(own, _TRAINING, None), own)
    comparisons = (
        ("GPU utilization", ("gpu_percent", "GPU utilisation (%)")),
        ("Training times", _TRAINING),
        ("RAM utilization", ("machine_memory_percent", "RAM utilisation of the machine (%)")),
        ("CPU utilization", ("machine_cpu_percent", "CPU utilisation of the machine (%)")),
    )
    for number, (title, column) in enumerate(comparisons, start=10):
        chart = _bars(tasks, column, None, by_framework=True)
        yield _figure(number, f"{title} for all tasks and frameworks", chart, tasks)


def _tasks(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort cells into the paper's six tasks for each framework; a task without cells is one row without numbers.

    Its Horovod cells had two GPUs; where there are none, cells with two ranks on cores stand in, and are named so.
    """
    place = rows["gpus"].map(lambda gpus: "GPU" if gpus else "CPU")
    place = place.mask(rows["parallelism"] == "horovod", "Horovod")
    plain = (rows["parallelism"] == "horovod") | ((rows["tasks"] == 1) & (rows["parallelism"] == "none"))
    # What a part of the training took would pass for the whole.
    time = rows["training_time"].where(rows["outcome"] == "completed")
    known = rows.assign(place=place, mode=rows["execution"], training_time=time)[
        plain & rows["framework"].isin(_FRAMEWORKS)
    ]
    stand_in = not (known["gpus"] > 0).any()
    if not stand_in:
        known = known[(known["place"] != "Horovod") | (known["gpus"] > 0)]
    every = pd.DataFrame(
        [(framework, mode, place) for framework in _FRAMEWORKS for mode in _MODES for place in _PLACES],
        columns=["framework", "mode", "place"],
    )
    columns = ["framework", "mode", "place", "gpus", "seed", *(name for name, _ in (_FINAL, _TRAINING, *_UTILISATION))]
    merged = every.merge(known[columns], on=["framework", "mode", "place"], how="left")
    names = {"Horovod": "Horovod (2 CPU ranks)"} if stand_in else {}
    merged["task"] = merged["mode"] + ", " + merged["place"].replace(names)
    merged["name"] = merged["framework"].map(_FRAMEWORKS)
    return merged


def _bars(
    tasks: pd.DataFrame, column: tuple[str, str], goal: float | None, width: int = _WIDTH, by_framework: bool = False
) -> alt.TopLevelMixin:
    """Draw a bar for each task, its mean over seeds; a task without a number has a grey note in its place."""
    value, title = column
    keys = ["name", "task", "mode", "place"]
    mean = tasks.groupby(keys, as_index=False, sort=False).agg(
        value=(value, "mean"), seeds=(value, "count"), ran=("gpus", "count"), gpus=("gpus", "max")
    )
    why = mean["gpus"].eq(0).map({True: "no GPU in it", False: "no value"}) if value == "gpu_percent" else "did not end"
    mean["note"] = pd.Series("not run", mean.index).mask(mean["ran"] > 0, why).mask(mean["value"].notna(), "")
    top = max(float(mean["value"].max()) if mean["value"].notna().any() else 1.0, goal or 0.0)
    x = alt.X("value:Q", title=title, scale=alt.Scale(domain=[0, top * 1.05 or 1.0]))
    y = alt.Y("task:N", title=None, sort=list(dict.fromkeys(mean["task"])), axis=alt.Axis(labelLimit=260))
    scale = alt.Scale(domain=list(_FRAMEWORKS.values()), range=COLOURS[:3])
    tips = ["name", "task", alt.Tooltip("value", title=title, format=".4g"), "seeds"]
    offset = alt.YOffset("name:N", sort=list(_FRAMEWORKS.values())) if by_framework else alt.Undefined
    hue = alt.Color("name:N", scale=scale, title="framework", legend=alt.Legend() if by_framework else None)
    base = alt.Chart(mean)
    bars = base.mark_bar(opacity=0.9).encode(x=x, y=y, yOffset=offset, color=hue, tooltip=tips)
    notes = base.mark_text(align="left", dx=4, color=GREY, fontStyle="italic", fontSize=11).encode(
        x=alt.value(0), y=y, yOffset=offset, text="note:N"
    )
    layers: list[alt.Chart] = [bars, notes]
    if goal is not None:
        rule = alt.Chart(pd.DataFrame({"goal": [goal]})).mark_rule(strokeDash=[4, 3], color=GREY)
        layers.append(rule.encode(x=alt.X("goal:Q", title=title)))
    return alt.layer(*layers).properties(width=width, height=_HEIGHT * (3 if by_framework else 1))


def _figure(number: int, title: str, chart: alt.TopLevelMixin, tasks: pd.DataFrame) -> Figure:
    missing = tasks[tasks["gpus"].isna()]
    text = f"Figure {number} of the paper, from the runs of this dataset; means over seeds."
    if not missing.empty:
        several = tasks["name"].nunique() > 1
        names = missing["name"] + " " + missing["task"] if several else missing["task"]
        text += f" Not run: {'; '.join(dict.fromkeys(names))}."
    return Figure(f"sol-{number:02}", f"Figure {number}: {title}", text, chart)
