"""Strong and weak scaling: speed-up with its ideal, parallel efficiency, cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd

from hpcrl.report.design import GREY
from hpcrl.report.figures.drawing import HEIGHT, Figure, Key, Panel, axis_title, colour, legend, rounded, stroke
from hpcrl.report.scaling import Kind, Series
from hpcrl.report.statistics import Estimate

Measure = Literal["speed-up", "efficiency", "cost"]
_MOST = 12  # series of a figure
_BEYOND = 1.5  # maximum length of a drawn interval, relative to the values; the table has the complete interval
_HEADS: dict[Measure, str] = {"speed-up": "speed-up", "efficiency": "parallel efficiency (%)", "cost": "cost of a run"}
_IDEAL = (4, 3)
_WHAT: dict[Kind, str] = {
    "strong": "Strong scaling: the same problem on more {units}.",
    "weak": "Weak scaling: the same work per {unit}, so the problem grows with the {units}.",
}


def figures(series: Sequence[Series], trains: bool) -> list[Figure]:
    """Draw each kind of scaling in the data.

    Args:
        trains: whether the time is that of training; otherwise it is that of the command.
    """
    kinds: tuple[Kind, ...] = ("strong", "weak")
    measures: tuple[Measure, ...] = ("speed-up", "efficiency", "cost")
    parts = [(kind, [curve for curve in series if curve.kind == kind]) for kind in kinds]
    return [_figure(kind, own, measure, trains) for kind, own in parts if own for measure in measures]


def _figure(kind: Kind, every: Sequence[Series], measure: Measure, trains: bool) -> Figure:
    some = every[:_MOST]
    places = list(dict.fromkeys((curve.cluster, curve.unit, curve.cost_unit) for curve in some))
    clusters, units = ({place[index] for place in places} for index in (0, 1))
    panels = []
    for cluster, unit, cost_unit in places:
        own = [curve for curve in some if (curve.cluster, curve.unit, curve.cost_unit) == (cluster, unit, cost_unit)]
        named = [*([cluster] if len(clusters) > 1 else []), *([f"{unit}s"] if len(units) > 1 else [])]
        panels.append(_panel(own, measure, ", ".join(named)))
    text = f"{_in_words(kind, measure, sorted(units))} {_times(some, measure, trains)}"
    if len(every) > len(some):
        text += f" {len(some)} of {len(every):,} configurations are drawn, the first by name; scaling.csv has all."
    data = _data(some, measure)
    limits = _limited(data, measure == "speed-up")
    if any((limits[end] != data[end])[data[end].notna()].any() for end in limits):
        text += " An arrowhead marks an interval that continues beyond the drawn bar; the table has its ends."
    keys = legend(data, lines=True)
    if measure != "cost":
        keys += (Key("ideal", dash=" ".join(map(str, _IDEAL))),)
    title = f"{kind.capitalize()} scaling: {measure}"
    return Figure(f"{kind}-scaling-{measure}", title, text, tuple(panels), keys)


def _in_words(kind: Kind, measure: Measure, units: Sequence[str]) -> str:
    unit = " or ".join(units)
    what = _WHAT[kind].format(unit=unit, units=" or ".join(f"{name}s" for name in units))
    if measure == "speed-up" and kind == "strong":
        return f"{what} The speed-up is the time on the minimum number of {unit}s, divided by the time. The ideal is proportional to their number."
    if measure == "speed-up":
        return f"{what} The speed-up is the work done in the same time, relative to the minimum number of {unit}s."
    if measure == "efficiency":
        return f"{what} The efficiency is the speed-up divided by the ideal speed-up; 100 % is ideal."
    return f"{what} The cost of a run is its whole time multiplied by the site's charge per hour of the cell, or core-hours if the profile has no unit."


def _times(series: Sequence[Series], measure: Measure, trains: bool) -> str:
    runs = max(point.runs for curve in series for point in curve.points)
    whose = "training alone" if trains else "the command alone"
    if measure == "cost":
        whole = all(curve.whole for curve in series)
        whose = "whole runs" if whole else f"whole runs, for configurations with requeued cells those of {whose}"
    if runs < 2:
        return f"Times are those of {whose}. With one run there is no interval."
    return f"Times are those of {whose}, geometric means over {'seeds' if trains else 'repeats'}; bars are 95 % intervals (t on logarithms)."


def _panel(series: Sequence[Series], measure: Measure, title: str) -> Panel:
    data = pd.concat([_data([curve], measure) for curve in series], ignore_index=True)
    unit, head = series[0].unit, _HEADS[measure]
    if measure == "cost":
        head = f"{head} ({series[0].cost_unit})"
    counts = sorted({int(count) for count in data["count"]})
    logarithmic = measure == "speed-up"
    drawn = rounded(data.assign(whole_low=data["low"], whole_high=data["high"], **_limited(data, logarithmic)))
    x = alt.X(
        "count:Q",
        title=f"{unit}s, log",
        scale=alt.Scale(type="log", base=2, domain=[counts[0], counts[-1]], nice=False, padding=12),
        axis=alt.Axis(format="d", values=counts),
    )
    scale = alt.Scale(type="log", base=2, nice=True) if logarithmic else alt.Scale(domainMin=0, nice=True)
    axis = alt.Axis(tickCount=6, format="~r") if logarithmic else alt.Axis(tickCount=6)
    y = alt.Y("value:Q", title=axis_title(head, logarithmic), scale=scale, axis=axis)
    tips = [
        alt.Tooltip("label", title="configuration"),
        alt.Tooltip("count", title=f"{unit}s"),
        alt.Tooltip("value", title=head, format=".4~r"),
        *(alt.Tooltip(f"whole_{name}", title=name, format=".4~r") for name in ("low", "high")),
        "runs",
    ]
    base = alt.Chart(drawn.drop(columns="hex")).encode(x=x, color=colour(data), detail="label:N")
    layers: list[Any] = [
        base.mark_rule(strokeWidth=5, opacity=0.3).encode(y=alt.Y("low:Q", scale=scale, axis=axis, title=axis_title(head, logarithmic)), y2="high:Q"),
        base.mark_line(strokeWidth=2).encode(y=y, **stroke(data)),
        base.mark_circle(size=60, opacity=1).encode(y=y, tooltip=tips),
    ]  # fmt: skip
    for end, shape in (("low", "triangle-down"), ("high", "triangle-up")):
        cut = drawn[drawn[end] != drawn[f"whole_{end}"]].dropna(subset=[end])
        if len(cut):
            arrow = alt.Chart(cut.drop(columns="hex")).mark_point(shape=shape, filled=True, size=90, opacity=1)
            layers.append(
                arrow.encode(x=x, y=alt.Y(f"{end}:Q", scale=scale, axis=axis), color=colour(data), tooltip=tips)
            )
    if measure != "cost":
        ideal = alt.Chart(_ideal(series, measure)).mark_line(strokeDash=list(_IDEAL), color=GREY, strokeWidth=1.5)
        layers.insert(0, ideal.encode(x=x, y=y, detail="fewest:N"))
    table = data[["label", "count", "value", "low", "high", "runs"]]
    table = table.set_axis(["configuration", f"{unit}s", head, "from", "to", "runs"], axis=1)
    return Panel(alt.layer(*layers).properties(height=HEIGHT), table, title)


def _estimate(point: Any, measure: Measure) -> Estimate:
    estimate: Estimate = {"speed-up": point.speed_up, "efficiency": point.efficiency, "cost": point.cost}[measure]
    return estimate


def _data(series: Sequence[Series], measure: Measure) -> pd.DataFrame:
    rows = []
    percent = 100.0 if measure == "efficiency" else 1.0
    for curve in series:
        for point in curve.points:
            estimate = _estimate(point, measure)
            low, high = (np.nan if end is None else end * percent for end in (estimate.low, estimate.high))
            rows.append(
                {"label": curve.label or "all cells", "colour": curve.colour, "hex": curve.hex, "dash": curve.dash, "count": point.count,
                 "value": estimate.value * percent, "low": low, "high": high, "runs": point.runs}
            )  # fmt: skip
    return pd.DataFrame(rows)


def _limited(data: pd.DataFrame, logarithmic: bool) -> dict[str, pd.Series[float]]:
    """Cut intervals at the figure's edge, because that of two runs may be a hundred times as long as the axis."""
    least, most = float(data["value"].min()) / _BEYOND, float(data["value"].max()) * _BEYOND
    return {"low": data["low"].clip(lower=least if logarithmic else 0.0), "high": data["high"].clip(upper=most)}


def _ideal(series: Sequence[Series], measure: Measure) -> pd.DataFrame:
    """Return the ideal from each minimum number of cores to the maximum."""
    ends: dict[int, int] = {}
    for curve in series:
        first, last = curve.points[0].count, curve.points[-1].count
        ends[first] = max(last, ends.get(first, last))
    return pd.DataFrame(
        [
            {"fewest": first, "count": count, "value": count / first if measure == "speed-up" else 100.0}
            for first, last in ends.items()
            for count in (first, last)
        ]
    )
