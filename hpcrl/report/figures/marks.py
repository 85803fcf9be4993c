"""The kinds of panel of most figures: dots with intervals, intervals alone, stacked bars, and curves with bands."""

from __future__ import annotations

from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd

from hpcrl.report.design import GREY, at_least, in_short
from hpcrl.report.figures.drawing import (
    HEIGHT,
    ROW,
    Panel,
    axis_title,
    by_place,
    colour,
    ordered,
    rounded,
    scale_of,
    stroke,
    thinned,
    y_lines,
)
from hpcrl.report.statistics import geometric_mean, median

Centre = Literal["geometric mean", "median"]
_BEYOND = 3  # maximum length of a drawn interval, relative to the seeds; the table has the complete interval
_TIMES_BEYOND = 4  # the same on a logarithmic axis, as a factor
_VALUE_WIDTH = 62  # pixels for the values beside the dots


def dots(
    data: pd.DataFrame,
    column: str,
    title: str,
    centre: Centre,
    rule: float | None = None,
    names: list[str] | None = None,
    notes: dict[str, str] | None = None,
    panel: str = "",
    domain: list[float] | None = None,
) -> Panel:
    """Draw each seed as a dot, and the centre over seeds with its interval, with the centre's value beside it.

    Args:
        data: `line`, `colour`, `hex`, `seed` and the column.
        centre: for positive values a geometric mean, with t on logarithms; otherwise a median, with order statistics.
        rule: position of a dashed line.
        names: the lines, in order; by default those of the data.
        notes: text in place of a value, by line.
        domain: limits of an axis that is never logarithmic, and holds the intervals, too; without it, the axis is logarithmic if the maximum is 20 times the minimum.
    """
    known = data[data[column].notna()].rename(columns={column: "value"})
    centre = centre_of(known["value"], centre)
    names = names or ordered(data["line"])
    rows = []
    for line, group in known.groupby("line", sort=False):
        values = np.asarray(group["value"].to_numpy(float))
        estimate = geometric_mean(values) if centre == "geometric mean" else median(values)
        low, high = (estimate.low, estimate.high) if estimate.low is not None else (np.nan, np.nan)
        first = group.iloc[0]
        rows.append(
            {"line": line, "colour": first["colour"], "hex": first["hex"], "value": estimate.value, "low": low, "high": high,
             "seeds": len(values), "text": in_short(estimate.value)}
        )  # fmt: skip
    columns = ["line", "colour", "hex", "value", "low", "high", "seeds", "text"]
    centres = pd.DataFrame(rows, columns=columns)
    scale, logarithmic = scale_of(known["value"])
    if centre == "geometric mean" and len(
        known
    ):  # the interval of two seeds may be a hundred times as long as the axis
        limits = known["value"].min() / _BEYOND, known["value"].max() * _BEYOND
        bars = centres.assign(low=centres["low"].clip(lower=limits[0]), high=centres["high"].clip(upper=limits[1]))
    else:
        bars = centres
    bars = bars.assign(whole_low=centres["low"], whole_high=centres["high"])
    if domain is not None:  # it grows with the intervals
        ends = [np.nanmin([domain[0], *bars["low"]]), np.nanmax([domain[1], *bars["high"]])]
        scale, logarithmic = alt.Scale(domain=[float(end) for end in ends]), False
    tips = [alt.Tooltip("line", title="configuration")]
    x = alt.X("value:Q", title=axis_title(title, logarithmic), scale=scale, axis=alt.Axis(tickCount=5))
    y, hue = y_lines(names), colour(known) if len(known) else alt.value(GREY)
    drawn = rounded(bars.drop(columns="hex"))
    base = alt.Chart(drawn).encode(y=y, color=hue)
    spans = base.mark_rule(strokeWidth=6, opacity=0.35).encode(
        x=alt.X("low:Q", title=axis_title(title, logarithmic), scale=scale), x2="high:Q",
        tooltip=[*tips, *(alt.Tooltip(f"whole_{name}", title=name, format=".4g") for name in ("low", "high"))],
    )  # fmt: skip
    ticks = base.mark_tick(thickness=3, size=ROW * 0.62).encode(
        x=x, tooltip=[*tips, alt.Tooltip("value", title=f"{centre}, {title}", format=".4g"), "seeds"]
    )
    texts = alt.Chart(drawn).mark_text(align="left", dx=8, fontSize=12).encode(
        x=alt.value("width"), y=y, text="text:N"
    )  # fmt: skip
    seeds = (
        alt.Chart(rounded(known[["line", "colour", "seed", "value"]]))
        .mark_circle(size=26, opacity=0.7)
        .encode(x=x, y=y, color=hue, tooltip=[*tips, "seed", alt.Tooltip("value", title=title, format=".4g")])
    )
    layers: list[Any] = [spans, seeds, ticks, texts]
    if rule is not None:
        dashed = alt.Chart(pd.DataFrame({"value": [rule]})).mark_rule(strokeDash=[4, 3], color=GREY)
        layers.insert(0, dashed.encode(x=x))
    if notes:
        said = pd.DataFrame([{"line": line, "note": text} for line, text in notes.items()])
        italic = alt.Chart(said).mark_text(align="left", dx=4, fontStyle="italic", fontSize=12)
        layers.append(italic.encode(x=alt.value(0), y=y, text="note:N"))
    chart = alt.layer(*layers).properties(
        height=alt.Step(ROW), padding={"left": 4, "top": 4, "bottom": 4, "right": _VALUE_WIDTH}
    )
    shown = centres.set_index("line").reindex([name for name in names if name in set(centres["line"])]).reset_index()
    table = shown[["line", "value", "low", "high", "seeds"]].rename(
        columns={"line": "configuration", "value": f"{title}, {centre}", "low": "from", "high": "to"}
    )
    return Panel(chart, table, panel, max(len(names), 1))


def intervals(data: pd.DataFrame, title: str, hue: str, rule: float | None = None, room: int = _VALUE_WIDTH) -> Any:
    """Draw on each line a value with its interval, on a logarithmic axis, with its text beside it.

    Args:
        data: `line`, `value`, `low`, `high`, `seeds` and `text`; with `published`, a diamond shows that value.
        rule: position of a dashed line.
        room: pixels for the texts.
    """
    names = list(data["line"])
    drawn = data.astype({"low": float, "high": float})
    drawn["low"] = drawn["low"].clip(lower=drawn["value"] / _TIMES_BEYOND)
    drawn["high"] = drawn["high"].clip(upper=drawn["value"] * _TIMES_BEYOND)
    numbers = [name for name in ("value", "low", "high", "published") if name in data]
    tips: list[Any] = ["line", *(alt.Tooltip(name, format=".4g") for name in numbers), "seeds"]
    base = alt.Chart(rounded(drawn)).encode(y=y_lines(names), tooltip=tips)
    scale = alt.Scale(type="log", nice=True)
    axes: dict[str, Any] = {"title": axis_title(title, logarithmic=True), "scale": scale, "axis": alt.Axis(tickCount=5)}
    x = alt.X("value:Q", **axes)
    layers: list[Any] = [
        base.mark_rule(strokeWidth=6, opacity=0.35, color=hue).encode(x=alt.X("low:Q", **axes), x2="high:Q"),
        base.mark_tick(thickness=3, size=ROW * 0.62, color=hue).encode(x=x),
        base.mark_text(align="left", dx=8, fontSize=12).encode(x=alt.value("width"), text="text:N"),
    ]
    if "published" in data:
        diamond = base.mark_point(shape="diamond", size=90, color=GREY, strokeWidth=2)
        layers.append(diamond.encode(x=alt.X("published:Q", **axes)))
    if rule is not None:
        dashed = alt.Chart(pd.DataFrame({"value": [rule]})).mark_rule(strokeDash=[4, 3], color=GREY)
        layers.insert(0, dashed.encode(x=x))
    padding = {"left": 4, "top": 4, "bottom": 4, "right": room}
    return alt.layer(*layers).properties(height=alt.Step(ROW), padding=padding)


def centre_of(values: pd.Series[float], wanted: Centre) -> Centre:
    """Return the kind of centre, because values that are not all positive have no geometric mean."""
    return wanted if len(values) == 0 or values.min() > 0 else "median"


def in_words(data: pd.DataFrame, column: str, centre: Centre) -> str:
    """Explain the marks of :func:`dots` for a caption."""
    known = data[data[column].notna()]
    seeds = known.groupby("line").size()
    if seeds.empty or seeds.max() < 2:
        return "Each dot is one run. With one run there is no interval."
    if centre_of(known[column], centre) == "geometric mean":
        kind = "the geometric mean over seeds, the bar its 95 % interval (t on logarithms)"
    else:
        several = seeds[seeds > 1]
        level = min(median(np.arange(float(count))).level for count in {int(number) for number in several})
        kind = (
            "the median over seeds, the bar an interval of order statistics that contains the median of all seeds in "
            f"{at_least(level)} of cases or more"
        )
    return f"Each dot is one seed, the tick is {kind}."


def stacked(
    long: pd.DataFrame, parts: dict[str, tuple[str, str]], title: str, names: list[str], share: bool = False
) -> Panel:
    """Draw bars of several parts, one bar for each line, with the sum beside it.

    Args:
        long: `line`, `part`, `value`. Values of the same line and part are averaged (arithmetic mean), so that parts add up.
        parts: part -> display name and colour, from left to right.
        share: whether bars are normalised, and show each part's share.
    """
    order = {part: index for index, part in enumerate(parts)}
    mean = long.groupby(["line", "part"], as_index=False)["value"].mean()
    mean = mean[mean["value"].notna()]
    sums = mean.groupby("line")["value"].transform("sum")
    if share:
        mean = mean.assign(value=100 * mean["value"] / sums.where(sums > 0))
    mean = mean.assign(
        order=mean["part"].map(order), part=mean["part"].map({key: name for key, (name, _) in parts.items()})
    )
    scale = alt.Scale(domain=[name for name, _ in parts.values()], range=[hue for _, hue in parts.values()])
    bars = (
        alt.Chart(rounded(mean))
        .mark_bar(height=ROW * 0.6)
        .encode(
            x=alt.X(
                "value:Q",
                title=title,
                stack="zero",
                axis=alt.Axis(tickCount=5),
                scale=alt.Scale(domain=[0, 100]) if share else alt.Undefined,
            ),
            y=y_lines(names),
            color=alt.Color("part:N", scale=scale, title=None),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("line", title="configuration"),
                "part",
                alt.Tooltip("value", title=title, format=".4g"),
            ],
        )
    )
    chart: Any = bars
    if not share:
        total = mean.groupby("line", as_index=False)["value"].sum()
        total["text"] = [in_short(value) for value in total["value"]]
        texts = alt.Chart(total[["line", "text"]]).mark_text(align="left", dx=8, fontSize=12)
        chart = bars + texts.encode(x=alt.value("width"), y=y_lines(names), text="text:N")
    chart = chart.properties(
        height=alt.Step(ROW), padding={"left": 4, "top": 4, "bottom": 4, "right": 12 if share else _VALUE_WIDTH}
    )
    wide = mean.pivot_table(index="line", columns="part", values="value", sort=False)
    wide = wide.reindex([name for name in names if name in wide.index])
    wide = wide[[name for name, _ in parts.values() if name in wide.columns]].reset_index()
    return Panel(chart, wide.rename(columns={"line": f"{title}"}), "", len(names))


def bands(
    data: pd.DataFrame,
    x_title: str,
    y_title: str,
    rule: float | None = None,
    logarithmic: bool = False,
) -> tuple[Panel, ...]:
    """Draw medians over seeds with their bands, one panel for each place, all with the same axes.

    Args:
        data: the result of :func:`hpcrl.report.curves.banded`.
        rule: position of a dashed horizontal line.
        logarithmic: whether x may be logarithmic, if one line ends far beyond another.
    """
    data = rounded(data)
    ends = data.groupby("line")["x"].max()
    x_scale, log = scale_of(ends) if logarithmic else (alt.Scale(zero=False), False)
    if log:
        data = data[data["x"] > ends.min() / 20]  # nothing happens before that
        x_scale = alt.Scale(type="log", nice=False)
    x = alt.X("x:Q", title=axis_title(x_title, log), axis=alt.Axis(tickCount=5), scale=x_scale)
    highest, lowest = data["high"].max(), min(data["low"].min(), 0.0)
    top = max(highest, rule) if rule is not None else highest
    # One scale for all panels, so that places can be compared.
    scale = alt.Scale(domain=[lowest, top if top > lowest else lowest + 1.0], nice=True)
    panels = []
    for place, part in by_place(data):
        kept = part[["x", "median", "low", "high", "seeds", "colour", "dash", "what"]]
        base = alt.Chart(kept)
        hue = colour(part)
        y = alt.Y("median:Q", title=y_title, scale=scale, axis=alt.Axis(tickCount=6))
        tips = [
            alt.Tooltip("what", title="configuration"),
            alt.Tooltip("x", title=x_title, format=",.4~r"),
            *(alt.Tooltip(name, format=",.4~r") for name in ("median", "low", "high")),
            "seeds",
        ]
        band = base.mark_area(opacity=0.14).encode(
            x=x, y=alt.Y("low:Q", title=y_title, scale=scale), y2="high:Q", color=hue, detail="what:N"
        )
        line = base.mark_line(strokeWidth=2).encode(x=x, y=y, color=hue, detail="what:N", tooltip=tips, **stroke(part))
        layers: list[Any] = [band, line]
        if rule is not None:
            layers.append(base.mark_rule(strokeDash=[4, 3], color=GREY).encode(y=alt.datum(rule)))
        table = thinned(part, ["what"])[["what", "x", "median", "low", "high", "seeds"]]
        table = table.set_axis(["configuration", x_title, "median", "from", "to", "seeds"], axis=1)
        panels.append(Panel(alt.layer(*layers).properties(height=HEIGHT), table, place))
    return tuple(panels)
