"""What can be said beyond the seeds that were run: interquartile means, performance profiles, improvement."""

from __future__ import annotations

from itertools import permutations

import altair as alt
import numpy as np
import pandas as pd

from hpcrl.report.figures.drawing import WIDTH, Figure, colour, dash, height, place_names, y_lines
from hpcrl.report.statistics import bootstrap, interquartile_mean, performance_profile, probability_of_improvement

_FEWEST = 2  # seeds of a line, for an interval
# Of the seeds, up to so many -> how often the bootstrap's intervals hold the truth in simulations (benchmarks/coverage).
_HOLDS = {2: 50, 3: 72, 4: 80, 5: 87, 7: 90, 10: 93}
_MOST_PAIRS = 12  # configurations in the matrix of improvement


def figures(rows: pd.DataFrame, goal: float | None) -> list[Figure | None]:
    known = rows[rows["final_score"].notna() & (rows["outcome"] == "completed")]
    counts = known.groupby("line")["final_score"].transform("size")
    known = known[counts >= _FEWEST]
    if known.empty:
        return []
    return [_means(known), _profiles(known, goal), _improvement(known)]


def _means(rows: pd.DataFrame) -> Figure:
    estimates = []
    for (line, hue), group in rows.groupby(["line", "colour"]):
        found = bootstrap(group["final_score"].to_numpy(float), interquartile_mean)
        estimates.append({"line": line, "colour": hue, "value": found.value, "low": found.low, "high": found.high})
    data = pd.DataFrame(estimates)
    base = alt.Chart(data).encode(y=y_lines(data), color=colour(rows))
    title = "interquartile mean of the final score"
    tips = ["line", *(alt.Tooltip(name, format=".1f") for name in ("value", "low", "high"))]
    bars = base.mark_bar(height=12, opacity=0.45).encode(x=alt.X("low:Q", title=title), x2="high:Q", tooltip=tips)
    ticks = base.mark_tick(thickness=3, size=18).encode(x=alt.X("value:Q", title=title), tooltip=tips)
    fewest = int(rows.groupby("line")["final_score"].size().min())
    text = "Mean of the middle half of the seeds, with 95 % percentile bootstrap intervals over seeds (Agarwal et al. 2021)."
    if holds := next((share for most, share in _HOLDS.items() if fewest <= most), None):
        text += f" With {fewest} seeds such an interval holds the true value in about {holds} % of experiments."
    chart = (bars + ticks).properties(width=WIDTH, height=height(data))
    return Figure("interquartile-mean", "Interquartile mean", text, chart)


def _profiles(rows: pd.DataFrame, goal: float | None) -> Figure:
    top = max(float(rows["final_score"].max()), goal or 0.0)
    thresholds = np.linspace(0, top, 101)
    frames = []
    for (place, what, hue, mode), group in rows.assign(place=place_names(rows)).groupby(
        ["place", "what", "colour", "dash"]
    ):
        fractions = performance_profile(group["final_score"].to_numpy(float), thresholds - 1e-9 * top)
        frame = pd.DataFrame({"score": thresholds, "fraction": fractions})
        frames.append(frame.assign(place=str(place), what=str(what), colour=str(hue), dash=str(mode)))
    data = pd.concat(frames, ignore_index=True)
    chart = (
        alt.Chart(data)
        .mark_line(strokeWidth=2, interpolate="step-after")
        .encode(
            x=alt.X("score:Q", title="final score"),
            y=alt.Y("fraction:Q", title="seeds that reach it", axis=alt.Axis(format="%")),
            color=colour(data),
            detail="what:N",
            tooltip=["what", "place", alt.Tooltip("score", format=".0f"), alt.Tooltip("fraction", format=".0%")],
            **dash(data),
        )
        .properties(width=WIDTH // 2, height=200)
    )
    faceted = chart.facet(facet=alt.Facet("place:N", title=None), columns=2) if data["place"].nunique() > 1 else chart
    text = (
        "The share of seeds whose last policy scores at least as much (performance profile): a higher line is better."
    )
    return Figure("performance-profiles", "Performance profiles", text, faceted)


def _improvement(rows: pd.DataFrame) -> Figure | None:
    scores = {str(line): group["final_score"].to_numpy(float) for line, group in rows.groupby("line")}
    names = sorted(scores)[:_MOST_PAIRS]
    if len(names) < 2:
        return None
    found = []
    for over, under in permutations(names, 2):
        estimate = probability_of_improvement(scores[over], scores[under], repetitions=500)
        low, high = (estimate.low, estimate.high) if estimate.low is not None else (np.nan, np.nan)
        found.append({"over": over, "under": under, "probability": estimate.value, "low": low, "high": high})
    data = pd.DataFrame(found)
    base = alt.Chart(data).encode(
        x=alt.X("under:N", title=None, axis=alt.Axis(labelAngle=-40, labelLimit=260, labelOverlap=False)),
        y=alt.Y("over:N", title=None, axis=alt.Axis(labelLimit=320, labelOverlap=False)),
        tooltip=["over", "under", *(alt.Tooltip(name, format=".2f") for name in ("probability", "low", "high"))],
    )
    scale = alt.Scale(domain=[0, 0.5, 1], range=["#F0A070", "#f4f4f4", "#70B0E0"])
    cells = base.mark_rect().encode(
        color=alt.Color("probability:Q", scale=scale, title="probability", legend=alt.Legend(format=".1f"))
    )
    numbers = base.mark_text(fontSize=11, color="#111111").encode(text=alt.Text("probability:Q", format=".2f"))
    size = max(120, 34 * len(names))
    text = "The probability that a run of the configuration on the left scores higher than one of that below, ties counted half: 0.5 is no difference."
    if len(scores) > len(names):
        text += f" The first {len(names)} of {len(scores)} configurations."
    chart = (cells + numbers).properties(width=size, height=28 * len(names))
    return Figure("probability-of-improvement", "Probability of improvement", text, chart)
