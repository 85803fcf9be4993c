"""Figures of statistics over seeds: interquartile means, performance profiles, probability of improvement."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import altair as alt
import numpy as np
import pandas as pd

from hpcrl.report.design import counted, in_short
from hpcrl.report.figures.drawing import (
    HEIGHT,
    ROW,
    Figure,
    Panel,
    by_place,
    colour,
    legend,
    ordered,
    rounded,
    stroke,
    y_lines,
)
from hpcrl.report.score import Score
from hpcrl.report.statistics import bootstrap, interquartile_mean, performance_profile, probability_of_improvement

_FEWEST = 2  # seeds of a line, for an interval
# Maximum number of seeds -> coverage of the bootstrap's intervals in simulations (benchmarks/coverage).
_HOLDS = {2: 50, 3: 72, 4: 80, 5: 87, 7: 90, 10: 93}
_MOST_PAIRS = 12  # configurations in the matrix of improvement


def figures(rows: pd.DataFrame, goal: float | None, score: Score) -> list[Figure]:
    known = rows[rows["final_score"].notna() & (rows["outcome"] == "completed")]
    counts = known.groupby("line")["final_score"].transform("size")
    few = known.loc[counts < _FEWEST, "line"].nunique()
    known = known[counts >= _FEWEST]
    if known.empty:
        return []
    left = f" Left out: {counted(few, 'configuration')} with one completed seed." if few else ""
    drawn = [_means(known, score), _profiles(known, goal, score), _improvement(known, score)]
    return [replace(figure, text=figure.text + left) for figure in drawn if figure]


def _means(rows: pd.DataFrame, score: Score) -> Figure:
    estimates = []
    for line, group in rows.groupby("line", sort=False):
        estimate = bootstrap(group["final_score"].to_numpy(float), interquartile_mean)
        estimates.append(
            {"line": line, "colour": group["colour"].iloc[0], "value": estimate.value, "low": estimate.low, "high": estimate.high,
             "seeds": len(group), "text": in_short(estimate.value)}
        )  # fmt: skip
    data = pd.DataFrame(estimates)
    names = ordered(data["line"])
    title = f"interquartile mean, {score.title}"
    base = alt.Chart(rounded(data)).encode(y=y_lines(names), color=colour(rows))
    tips = [
        alt.Tooltip("line", title="configuration"),
        *(alt.Tooltip(name, format=",.4~r") for name in ("value", "low", "high")),
    ]
    axis = alt.Axis(tickCount=5)
    bars = base.mark_rule(strokeWidth=6, opacity=0.35).encode(
        x=alt.X("low:Q", title=title, axis=axis), x2="high:Q", tooltip=tips
    )
    ticks = base.mark_tick(thickness=3, size=16).encode(x=alt.X("value:Q", title=title, axis=axis), tooltip=tips)
    texts = alt.Chart(rounded(data)).mark_text(align="left", dx=8, fontSize=12)
    values = texts.encode(x=alt.value("width"), y=y_lines(names), text="text:N")
    chart = (bars + ticks + values).properties(
        height=alt.Step(ROW), padding={"left": 4, "top": 4, "bottom": 4, "right": 62}
    )
    fewest = int(rows.groupby("line")["final_score"].size().min())
    text = (
        "The tick is the mean of the middle half of the seeds, the bar its 95 % percentile bootstrap interval over seeds (Agarwal et "
        "al. 2021)."
    )
    if holds := next((share for most, share in _HOLDS.items() if fewest <= most), None):
        text += f" With {fewest} seeds such an interval contains the true value in about {holds} % of experiments."
    table = data.set_index("line").loc[names].reset_index()[["line", "value", "low", "high", "seeds"]]
    table = table.set_axis(["configuration", title, "from", "to", "seeds"], axis=1)
    return Figure(
        "interquartile-mean", "Interquartile mean", text, (Panel(chart, table, "", len(names)),), legend(rows)
    )


def _profiles(rows: pd.DataFrame, goal: float | None, score: Score) -> Figure:
    low, top = min(float(rows["final_score"].min()), 0.0), max(float(rows["final_score"].max()), goal or 0.0)
    thresholds = np.linspace(low, top, 101)
    shift = 1e-9 * ((top - low) or 1.0)  # a score reaches a threshold that it equals
    panels = []
    for place, part in by_place(rows):
        frames = []
        for what, group in part.groupby("what"):
            scores = group["final_score"].to_numpy(float)
            fractions = performance_profile(scores, thresholds - shift)
            if not score.more_is_better:
                fractions = 1 - performance_profile(scores, thresholds + shift)
            first = group.iloc[0]
            frame = pd.DataFrame({"score": thresholds, "fraction": fractions}).assign(what=str(what))
            frames.append(frame.assign(colour=first["colour"], hex=first["hex"], dash=first["dash"]))
        data = pd.concat(frames, ignore_index=True)
        steps = data.groupby("what")["fraction"].diff() != 0
        kept = data[steps | (data["what"] != data["what"].shift(-1))]
        chart = (
            alt.Chart(rounded(kept.drop(columns="hex")))
            .mark_line(strokeWidth=2, interpolate="step-after")
            .encode(
                x=alt.X("score:Q", title=score.title, axis=alt.Axis(tickCount=6)),
                y=alt.Y(
                    "fraction:Q",
                    title=f"{score.runs} that reach it",
                    axis=alt.Axis(format="%", tickCount=5),
                    scale=alt.Scale(domain=[0, 1]),
                ),
                color=colour(data),
                detail="what:N",
                tooltip=["what", alt.Tooltip("score", format=",.4~r"), alt.Tooltip("fraction", format=".0%")],
                **stroke(data),
            )
            .properties(height=HEIGHT)
        )
        table = kept[["what", "score", "fraction"]].set_axis(["configuration", score.title, "share of seeds"], axis=1)
        panels.append(Panel(chart, table, place))
    reach = "at least" if score.more_is_better else "at most"
    text = f"The share of seeds whose {score.title} is {reach} so much (performance profile): a higher line is better."
    return Figure("performance-profiles", "Performance profiles", text, tuple(panels), legend(rows, lines=True))


def _improvement(rows: pd.DataFrame, score: Score) -> Figure | None:
    """Draw a panel for each task."""
    panels = [panel for task, part in rows.groupby("task") if (panel := _pairs(part, score, str(task)))]
    if not panels:
        return None
    text = (
        "The probability that a run of the configuration on the left scores better than one of the numbered column, ties count "
        "half. 0.5 means no difference. Configurations are numbered by their median, best first. The table has 95 % intervals of "
        "each pair (Newcombe 2006, method 5)."
    )
    if (most := rows.groupby("task")["line"].nunique().max()) > _MOST_PAIRS:
        text += f" The best {_MOST_PAIRS} of {most} configurations."
    return Figure("probability-of-improvement", "Probability of improvement", text, tuple(panels))


def _pairs(rows: pd.DataFrame, score: Score, title: str) -> Panel | None:
    scores = {str(line): group["final_score"].to_numpy(float) for line, group in rows.groupby("line")}
    sign = -1 if score.more_is_better else 1
    best = sorted(ordered(rows["line"]), key=lambda name: sign * float(np.median(scores[name])))
    names = best[:_MOST_PAIRS]
    if len(names) < 2:
        return None
    pairs = []
    for over, under in permutations(names, 2):
        first, second = (over, under) if score.more_is_better else (under, over)
        estimate = probability_of_improvement(scores[first], scores[second])
        low, high = (estimate.low, estimate.high) if estimate.low is not None else (np.nan, np.nan)
        pairs.append({"over": over, "under": under, "probability": estimate.value, "low": low, "high": high})
    places = {name: str(number) for number, name in enumerate(names, start=1)}
    data = pd.DataFrame(pairs)
    data = data.assign(row=data["over"].map(places) + "  " + data["over"], column=data["under"].map(places))
    rows_of = [f"{places[name]}  {name}" for name in names]
    base = alt.Chart(rounded(data, 3)).encode(
        x=alt.X(
            "column:N", title="beats configuration number", sort=list(places.values()), axis=alt.Axis(labelAngle=0, labelOverlap=False)
        ),
        y=alt.Y("row:N", title=None, sort=rows_of, axis=alt.Axis(labelLimit=300, labelOverlap=False)),
        tooltip=["over", "under", *(alt.Tooltip(name, format=".2f") for name in ("probability", "low", "high"))],
    )  # fmt: skip
    scale = alt.Scale(domain=[0, 0.5, 1], range=["#F0A070", "#f4f4f4", "#70B0E0"])
    cells = base.mark_rect().encode(color=alt.Color("probability:Q", scale=scale, title="probability"))
    numbers = base.mark_text(fontSize=11, color="#111111").encode(text=alt.Text("probability:Q", format=".2f"))
    chart = (cells + numbers).properties(height=alt.Step(30))
    table = data[["over", "under", "probability", "low", "high"]]
    table = table.set_axis(["configuration", "beats", "probability", "from", "to"], axis=1)
    return Panel(chart, table, title, len(names))
