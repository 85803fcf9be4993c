"""What was learnt, and how soon: scores, times, learning curves."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from hpcrl.report.figures.drawing import (
    GREY,
    ROW,
    WIDTH,
    Figure,
    bands,
    colour,
    dots_and_means,
    height,
    stacked,
    y_lines,
)
from hpcrl.report.groups import curves


def figures(rows: pd.DataFrame, episodes: pd.DataFrame, goal: float | None) -> list[Figure | None]:
    return [
        scores(rows, goal),
        _curves(rows, episodes, "episode", "episode", goal),
        _curves(rows, episodes, "time", "training time (s)", goal),
        _time_to_goal(rows, goal),
        times(rows),
        _start(rows),
        _scaling(rows),
        _normalised(rows),
    ]


def scores(rows: pd.DataFrame, goal: float | None) -> Figure | None:
    known = rows[rows["final_score"].notna()]
    if known.empty:
        return None
    data = known[["line", "colour", "seed", "final_score", "best_score", "outcome"]]
    values = [*known["final_score"], goal or 0.0, 0.0]
    margin = (max(values) - min(values)) * 0.05
    domain = [min(values) - margin * (min(values) < 0), max(values) + margin * (max(values) > 0)]
    axis = "final score (mean return of 10 greedy episodes)"
    x = alt.X("final_score:Q", title=axis, scale=alt.Scale(domain=domain))
    base = alt.Chart(data)
    points = base.mark_circle(size=70, opacity=0.75).encode(
        x=x,
        y=y_lines(rows),
        color=colour(rows),
        tooltip=["line", "seed", alt.Tooltip("final_score", format=".1f"), "outcome"],
    )
    means = base.mark_tick(thickness=3, size=ROW * 0.75, color=GREY).encode(
        x=alt.X("mean(final_score):Q", title=axis), y=y_lines(rows)
    )
    layers: list[Any] = [means, points]
    text = "Each dot is one seed, each tick the mean over seeds."
    if goal is not None:
        rule = alt.Chart(pd.DataFrame({"goal": [goal]})).mark_rule(strokeDash=[4, 3], color=GREY)
        layers.insert(0, rule.encode(x="goal:Q"))
        text += f" The dashed line is the goal, {goal:g}."
    chart = alt.layer(*layers).properties(width=WIDTH, height=height(rows))
    return Figure("final-score", "Final score", text, chart)


# column -> name and colour, in the order in which they happen
_PARTS = {
    "setup_time": ("set-up (import, build)", "#E69F00"),
    "compile_time": ("compile, warm up", "#D55E00"),
    "training_time": ("training", "#0072B2"),
}


def times(rows: pd.DataFrame) -> Figure | None:
    known = rows[rows["training_time"].notna() & (rows["outcome"] == "completed")]
    if known.empty:
        return None
    long = known.melt(id_vars=["line"], value_vars=list(_PARTS), var_name="part")
    chart = stacked(long, rows, _PARTS, "time (s), mean over seeds")
    text = "Wall time until the first step (imports and building, then compiling and warming up), and of training, of completed cells."
    return Figure("training-time", "Training time", text, chart)


def _start(rows: pd.DataFrame) -> Figure | None:
    known = rows[rows["compile_time"].notna()]
    if known.empty:
        return None
    parts = {name: look for name, look in _PARTS.items() if name != "training_time"}
    long = known.melt(id_vars=["line"], value_vars=list(parts), var_name="part")
    chart = stacked(long, rows, parts, "time until the first step (s), mean over seeds")
    text = "What a run pays before it learns anything. Compilers start from nothing in every cell: no cache is shared."
    return Figure("start-up", "Start-up and compilation", text, chart)


def _time_to_goal(rows: pd.DataFrame, goal: float | None) -> Figure | None:
    known = rows[rows["goal_time"].notna()]
    if known.empty or goal is None:
        return None
    chart = dots_and_means(known, rows, "goal_time", "training time until the goal (s)")
    missed = len(rows) - len(known)
    text = f"Training time at the first evaluation that reached {goal:g}; bars are means over the seeds that did."
    if missed:
        text += f" {missed} of {len(rows)} cells did not."
    return Figure("time-to-goal", "Time to the goal", text, chart)


def _scaling(rows: pd.DataFrame) -> Figure | None:
    """Draw throughput against cores, where some configuration ran on several numbers of them."""
    known = rows[rows["training_time"].notna() & rows["steps"].notna() & (rows["outcome"] == "completed")]
    known = known.assign(
        resources=(known["cpus"] * known["tasks"]).where(known["gpus"] == 0, known["gpus"]),
        unit=known["gpus"].map(lambda gpus: "GPUs" if gpus else "cores"),
        rate=known["steps"] / known["training_time"],
    )
    several = known.groupby(["cluster", "what", "unit"])["resources"].transform("nunique") > 1
    if known.empty or not several.any():
        return None
    mean = (
        known[several]
        .groupby(["cluster", "what", "colour", "dash", "unit", "parallelism", "resources"], as_index=False)
        .agg(rate=("rate", "mean"))
    )
    base = alt.Chart(mean).encode(
        x=alt.X(
            "resources:Q",
            title="cores or GPUs of the cell",
            scale=alt.Scale(type="log", base=2),
            axis=alt.Axis(format="d", tickMinStep=1),
        ),
        y=alt.Y("rate:Q", title="environment steps a second"),
        color=colour(mean),
        detail=["what:N", "cluster:N", "unit:N"],
        tooltip=["what", "cluster", "parallelism", "resources", "unit", alt.Tooltip("rate", format=".0f")],
    )
    chart = (base.mark_line(opacity=0.6) + base.mark_circle(size=60)).properties(width=WIDTH // 2, height=240)
    faceted = chart.facet(facet=alt.Facet("dash:N", title=None), columns=2) if mean["dash"].nunique() > 1 else chart
    text = "Steps of all ranks together; points of one configuration are joined. Several ranks share one batch, so a flat line is what a small network shows."
    return Figure("scaling", "Scaling", text, faceted)


def _normalised(rows: pd.DataFrame) -> Figure | None:
    """Draw throughput in terms of the machine's own speed, where there are several clusters to compare."""
    known = rows[(rows["outcome"] == "completed") & rows["steps"].notna() & (rows["training_time"] > 0)]
    known = known[known["calibration_environment"].notna()]
    if known["cluster"].nunique() < 2:
        return None
    known = known.assign(rate=known["steps"] / known["training_time"] / known["calibration_environment"])
    chart = dots_and_means(known, rows, "rate", "environment steps, for each step of the calibration")
    text = (
        "Environment steps a second of training, divided by the CartPole steps a second that one core of the same node made in its "
        "calibration: what is left of a difference between clusters is not their cores' speed. Bars are means over seeds, dots are seeds."
    )
    return Figure("normalised-speed", "Speed in terms of the machine's own", text, chart)


def _curves(rows: pd.DataFrame, episodes: pd.DataFrame, by: str, axis: str, goal: float | None) -> Figure | None:
    data = curves(rows.drop(columns="line"), episodes, by)
    if data.empty:
        return None
    chart = bands(data, axis, "return (mean of 20 episodes)", goal, logarithmic=by == "time")
    name = {"episode": "return-by-episode", "time": "return-by-time"}[by]
    title = {"episode": "Return against episodes", "time": "Return against time"}[by]
    text = "Training returns, the last 20 episodes averaged. Lines are means over seeds, bands span the seeds; a line ends where its shortest seed ends."
    return Figure(name, title, text, chart)
