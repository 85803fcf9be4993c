"""Large studies: score and time against a numeric axis, and over two axes as a heat map."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import altair as alt
import pandas as pd

from hpcrl.report.axes import machine_kinds, numeric, texts_of
from hpcrl.report.design import capitalised, colours, counted, in_short
from hpcrl.report.figures.drawing import (
    HEIGHT,
    Figure,
    Key,
    Panel,
    axis_title,
    colour,
    legend,
    ordered,
    rounded,
    scale_of,
    stroke,
)
from hpcrl.report.score import Score

_MOST_AXES = 4
_MOST_VALUES = 40  # of an axis of a heat map
_MOST_MAPS = 6
_FEW = 60  # cells of a heat map that have room for a number
_MOST_COLOURS = 8
_NO_COLOURS = ("execution", "cluster", "machine")  # axes that have other marks


def figures(rows: pd.DataFrame, axes: pd.DataFrame, score: Score) -> list[Figure | None]:
    """Draw every numeric axis of a study with at least three values.

    Args:
        rows: all attempts of the study with the columns of `with_groups`; axes: its axes, on the same index.
    """
    names = numeric(axes)
    column, title = "training_time", f"{'training time' if score.trains else 'time of the command'} (s)"
    if not rows["training_time"].notna().any():
        column, title = "wall_time", "wall time (s)"
    timed = rows[(rows["outcome"] == "completed") & (rows[column] > 0)]
    crowded = int(timed["crowded"].sum())
    measures = [
        ("final_score", "score", score.title, rows[rows["final_score"].notna()], ""),
        (column, "time", title, timed[~timed["crowded"]], _without(crowded)),
    ]
    drawn: list[Figure | None] = []
    for axis in names[:_MOST_AXES]:
        for column, name, title, known, without in measures:
            figure = _against(known, axes, axis, column, name, title)
            drawn.append(_with_rule(figure, f"{_rule_of_axes(names)}{without}".strip()))
    pairs = list(combinations(names, 2))
    for pair in pairs[:1]:
        for column, name, title, known, without in measures:
            figure = _map(known, axes, pair, column, name, title)
            only = f"Of {len(pairs)} pairs of axes only the first is drawn." * (len(pairs) > 1)
            drawn.append(_with_rule(figure, f"{only}{without}".strip()))
    return drawn


def _without(crowded: int) -> str:
    return f" Without {counted(crowded, 'cell')} that had more cores to use than the machine has." if crowded else ""


def _rule_of_axes(names: list[str]) -> str:
    if len(names) <= _MOST_AXES:
        return ""
    drawn = ", ".join(name.replace("_", " ") for name in names[:_MOST_AXES])
    return f"Of {len(names)} numeric axes the first {_MOST_AXES} are drawn: {drawn}."


def _with_rule(figure: Figure | None, rule: str) -> Figure | None:
    """Say in the caption which figures were left out."""
    return replace(figure, text=f"{figure.text} {rule}") if figure and rule else figure


def _against(known: pd.DataFrame, axes: pd.DataFrame, axis: str, column: str, name: str, title: str) -> Figure | None:
    own = axes.loc[known.index]
    data = known.assign(x=own[axis].astype(float), value=known[column], place="")
    if data["x"].nunique() < 2:
        return None
    if name == "time":
        data["place"] = _places(known)
    data = _with_lines(data, own.drop(columns=axis))
    keys = ["place", "colour", "hex", "dash"]
    grouped = data.groupby([*keys, "x"])["value"]
    parts = {name: grouped.quantile(share) for name, share in (("low", 0.25), ("median", 0.5), ("high", 0.75))}
    middle = pd.DataFrame({**parts, "runs": grouped.size()}).reset_index()
    label = axis.replace("_", " ")
    x_scale, x_log = scale_of(middle["x"], zero=False)
    y_scale, y_log = scale_of(pd.concat([middle["low"], middle["high"]]))
    series = middle.assign(series=(middle["colour"] + " " + middle["dash"]).str.strip())
    x = alt.X("x:Q", title=axis_title(label, x_log), scale=x_scale, axis=alt.Axis(tickCount=6))
    y = alt.Y("median:Q", title=axis_title(title, y_log), scale=y_scale, axis=alt.Axis(tickCount=6))
    tips = ["series", alt.Tooltip("x", title=label), alt.Tooltip("median", title=title, format=",.4~r"), "runs"]
    heads = ["runs of", axis, f"{title}, median", "lower quartile", "upper quartile", "runs"]
    panels = []
    for place in ordered(series["place"]):
        part = series[series["place"] == place]
        base = alt.Chart(rounded(part.drop(columns="hex"))).encode(x=x, color=colour(series), detail="series:N")
        band = base.mark_area(opacity=0.12).encode(
            y=alt.Y("low:Q", scale=y_scale, title=axis_title(title, y_log)), y2="high:Q"
        )
        line = base.mark_line(strokeWidth=2).encode(y=y, tooltip=tips, **stroke(series))
        points = base.mark_circle(size=36).encode(y=y, tooltip=tips)
        table = part[["series", "x", "median", "low", "high", "runs"]].set_axis(heads, axis=1)
        panels.append(Panel((band + line + points).properties(height=HEIGHT), table, place))
    of_lines = [data[key] for key in keys]
    others = [
        str(other).replace("_", " ")
        for other in own
        if other != axis and pd.Series(texts_of(own[other]), own.index).groupby(of_lines).nunique().max() > 1
    ]
    text = (
        f"Lines are medians over all runs with the same {label}"
        + (f", over all values of {', '.join(others)} and seed" if others else " over seeds")
        + "; bands go from the lower to the upper quartile of these runs."
        + " Each cluster and kind of machine has a panel." * (len(panels) > 1)
    )
    heading = f"{_heading(title)} against {label}"
    return Figure(f"{name}-by-{axis}", heading, text, tuple(panels), legend(series, lines=True))


def _places(rows: pd.DataFrame) -> pd.Series[str]:
    """Return the cluster and the kind of machine of each run, "" if all ran on one: times on two of them do not compare."""
    places = rows["cluster"].astype(str) + machine_kinds(rows)
    return places if places.nunique() > 1 else pd.Series("", rows.index)


def _with_lines(data: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Give each value of the other axes a colour where a colour is one configuration, whose only point is no line."""
    if data.groupby(["place", "colour", "dash"])["x"].nunique().max() > 1:
        return data
    names = pd.Series("", others.index)
    for other in others:
        if other not in _NO_COLOURS:
            names += [f" {other} {text}" for text in texts_of(others[other])]
    names = names.str.strip().replace("", "all")
    if names.nunique() > _MOST_COLOURS:
        names[:] = "all"
    return data.assign(colour=names, hex=names.map(colours(names)))


def _map(
    known: pd.DataFrame, axes: pd.DataFrame, pair: tuple[str, str], column: str, name: str, title: str
) -> Figure | None:
    first, second = pair
    labels = [name.replace("_", " ") for name in pair]
    text = ""
    if name == "time" and not known.empty:
        places = _places(known)
        most = str(places.mode().iloc[0])
        known = known[places == most]
        text = f" Only runs on {most} are drawn, because times on two kinds of machines do not compare." if most else ""
    data = known.assign(x=axes.loc[known.index, first], y=axes.loc[known.index, second], value=known[column])
    if data.empty or max(data["x"].nunique(), data["y"].nunique()) > _MOST_VALUES:
        return None
    names = ordered(data["colour"])
    # A colour may stand for a configuration, or for a value of these axes.
    is_map = data.groupby("colour")[["x", "y"]].nunique().max().min() > 1
    by_colour = 1 < len(names) <= _MOST_MAPS and is_map
    parts = [(heading, data[data["colour"] == heading]) for heading in names] if by_colour else [("", data)]
    middles = [(heading, part.groupby(["x", "y"], as_index=False)["value"].median()) for heading, part in parts]
    values = pd.concat([middle["value"] for _, middle in middles])
    low, high = float(values.min()), float(values.max())
    logarithmic = low > 0 and high > 20 * low
    scale = alt.Scale(scheme="cividis", domain=[low, high], type="log" if logarithmic else "linear")
    panels = []
    for heading, middle in middles:
        xs, ys = sorted(middle["x"].unique().tolist()), sorted(middle["y"].unique().tolist(), reverse=True)
        middle = middle.assign(
            text=[in_short(value) for value in middle["value"]], dark=middle["value"] < (low + high) / 2
        )
        base = alt.Chart(rounded(middle)).encode(
            x=alt.X("x:O", title=labels[0], sort=xs, axis=alt.Axis(labelAngle=0)),
            y=alt.Y("y:O", title=labels[1], sort=ys),
        )
        tips = [
            alt.Tooltip("x", title=labels[0]),
            alt.Tooltip("y", title=labels[1]),
            alt.Tooltip("value", title=title, format=",.4~r"),
        ]
        chart: Any = base.mark_rect().encode(color=alt.Color("value:Q", scale=scale, title=title), tooltip=tips)
        if len(xs) * len(ys) <= _FEW and len(xs) <= 8:
            ink = alt.condition("datum.dark", alt.value("#ffffff"), alt.value("#000000"))
            chart = alt.layer(chart, base.mark_text(fontSize=11).encode(text="text:N", color=ink))
        table = middle[["x", "y", "value"]].set_axis([first, second, f"{title}, median"], axis=1)
        panels.append(Panel(chart.properties(height=min(420, max(160, 24 * len(ys)))), table, heading))
    scheme = [Key(f"{in_short(low)} (dark)", "#00224e"), Key(f"{in_short(high)} (bright)", "#fee838")]
    text = (
        f"Each field is the median over all runs with the same {labels[0]} and {labels[1]}, over all other axes.{text}"
    )
    if logarithmic:
        text += " Colours are logarithmic."
    return Figure(
        f"{name}-map", f"{_heading(title)} over {labels[0]} and {labels[1]}", text, tuple(panels), tuple(scheme)
    )


def _heading(title: str) -> str:
    """Return a figure's title from that of an axis: with a capital, without the unit."""
    return capitalised(title.partition(" (")[0])
