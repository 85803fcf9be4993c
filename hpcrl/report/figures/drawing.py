"""What all figures share: one Vega-Lite specification each, drawn interactively in the HTML, and as PNG, SVG and PDF."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

# Okabe and Ito's colours, told apart by readers with any common colour blindness; yellow and black are left out.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F"]
DASHES = {"": [1, 0], "eager": [1, 0], "lazy": [6, 3], "fused": [2, 2]}
GREY = "#7F7F7F"
ROW = 26  # pixels of a line of the comparison
WIDTH = 560
_FAR = 10  # times as long a line makes an axis logarithmic
MOST_LINES = 60  # in one figure; the table has them all


@dataclass(frozen=True)
class Figure:
    """One figure: file name, what it shows in words, and its specification."""

    name: str
    title: str
    text: str
    chart: alt.TopLevelMixin


def line_names(rows: pd.DataFrame) -> pd.Series[Any]:
    """Name the lines by what differs among them: places and clusters only where there are several."""
    names = rows["what"]
    if rows["where"].nunique() > 1:
        names = names + " · " + rows["where"]
    if rows["cluster"].nunique() > 1:
        names = names + " · " + rows["cluster"]
    return names


def colour(rows: pd.DataFrame) -> alt.Color:
    domain = sorted(rows["colour"].unique())
    scale = alt.Scale(domain=domain, range=[COLOURS[index % len(COLOURS)] for index in range(len(domain))])
    title = "framework" if (rows["colour"] != rows["what"]).any() else "configuration"
    return alt.Color("colour:N", scale=scale, title=title, legend=alt.Legend(symbolOpacity=1))


def dash(data: pd.DataFrame) -> dict[str, Any]:
    """Return the encoding that tells modes of execution apart, none where there is only one."""
    names = sorted(data["dash"].unique())
    if names == [""]:
        return {}
    scale = alt.Scale(domain=names, range=[DASHES.get(name, [4, 4]) for name in names])
    legend = alt.Legend(symbolSize=700, symbolStrokeWidth=2)
    return {"strokeDash": alt.StrokeDash("dash:N", scale=scale, title="execution", legend=legend)}


def place_names(rows: pd.DataFrame) -> pd.Series[Any]:
    """Name the places of a figure with a panel for each: the cluster only where there are several."""
    return rows["cluster"] + ", " + rows["where"] if rows["cluster"].nunique() > 1 else rows["where"]


def y_lines(rows: pd.DataFrame) -> alt.Y:
    return alt.Y(
        "line:N",
        title=None,
        sort=sorted(rows["line"].unique()),
        axis=alt.Axis(labelLimit=420, labelPadding=8),
    )


def height(rows: pd.DataFrame) -> int:
    return ROW * max(2, rows["line"].nunique())


def stacked(long: pd.DataFrame, rows: pd.DataFrame, parts: dict[str, tuple[str, str]], title: str) -> alt.Chart:
    """Draw bars of several parts, one bar for each line.

    Args:
        long: `line`, `part`, `value`; a mean is taken over what has the same line and part.
        parts: part -> its name for readers and its colour, in the order from left to right.
    """
    order = {part: index for index, part in enumerate(parts)}
    mean = long.groupby(["line", "part"], as_index=False)["value"].mean()
    mean = mean.assign(
        order=mean["part"].map(order), part=mean["part"].map({key: name for key, (name, _) in parts.items()})
    )
    scale = alt.Scale(domain=[name for name, _ in parts.values()], range=[hue for _, hue in parts.values()])
    return (
        alt.Chart(mean)
        .mark_bar(height=ROW * 0.6)
        .encode(
            x=alt.X("value:Q", title=title, stack="zero"),
            y=y_lines(rows),
            color=alt.Color(
                "part:N", scale=scale, title=None, legend=alt.Legend(orient="top", labelLimit=0, columns=6)
            ),
            order=alt.Order("order:Q"),
            tooltip=["line", "part", alt.Tooltip("value", title=title, format=".4g")],
        )
        .properties(width=WIDTH, height=height(rows))
    )


def dots_and_means(
    data: pd.DataFrame, rows: pd.DataFrame, column: str, title: str, width: int = WIDTH
) -> alt.LayerChart:
    """Draw each seed as a dot and the mean over seeds as a bar."""
    data = data[["line", "colour", "seed", column]].rename(columns={column: "value"})
    base = alt.Chart(data)
    bars = base.mark_bar(height=ROW * 0.6, opacity=0.85).encode(
        x=alt.X("mean(value):Q", title=title, scale=alt.Scale(zero=True), stack=False),
        y=y_lines(rows),
        color=colour(rows),
    )
    dots = base.mark_circle(size=22, color="#888888", opacity=0.9).encode(
        x=alt.X("value:Q", title=title),
        y=y_lines(rows),
        tooltip=["line", "seed", alt.Tooltip("value", title=title, format=".4g")],
    )
    chart: alt.LayerChart = (bars + dots).properties(width=width, height=height(rows))
    return chart


def bands(
    data: pd.DataFrame,
    x_title: str,
    y_title: str,
    rule: float | None = None,
    y_format: str = ".1f",
    logarithmic: bool = False,
) -> alt.TopLevelMixin:
    """Draw lines with a band from the lowest to the highest seed; one panel for each place if there are several.

    Args:
        data: what :func:`hpcrl.report.groups.banded` returns.
        rule: where a dashed horizontal line goes.
        logarithmic: whether x may be, where one line ends far beyond another.
    """
    data = data.assign(place=place_names(data))
    ends = data.groupby(["cluster", "where", "what"])["x"].max()
    scale: Any = alt.Undefined
    if logarithmic and ends.max() > _FAR * ends.min():
        data = data[data["x"] > ends.min() / 20]  # before that nothing has happened
        scale, x_title = alt.Scale(type="log", nice=False), f"{x_title}, logarithmic"
    x = alt.X("x:Q", title=x_title, axis=alt.Axis(tickCount=6), scale=scale)
    y = alt.Y("mean:Q", title=y_title)
    encodings: dict[str, Any] = {"x": x, "color": colour(data), **dash(data)}
    base = alt.Chart(data)
    detail = [alt.Detail(f"{key}:N") for key in ("cluster", "where", "what")]
    band = base.mark_area(opacity=0.13).encode(
        x=x, y=alt.Y("low:Q", title=y_title), y2="high:Q", color=colour(data), detail=detail
    )
    tips = [
        "what",
        "where",
        "cluster",
        alt.Tooltip("x", title=x_title, format=".1f"),
        alt.Tooltip("mean", title=y_title, format=y_format),
        "seeds",
    ]
    line = base.mark_line(strokeWidth=2).encode(y=y, detail=detail, tooltip=tips, **encodings)
    layers: list[Any] = [band, line]
    if rule is not None:
        # Of the same data, so that the figure can be split by place.
        layers.append(base.mark_rule(strokeDash=[4, 3], color=GREY).encode(y=alt.datum(rule)))
    if data["place"].nunique() == 1:
        return alt.layer(*layers).properties(width=WIDTH, height=280)
    return (
        alt.layer(*layers, data=data)
        .properties(width=WIDTH // 2, height=220)
        .facet(facet=alt.Facet("place:N", title=None), columns=2)
    )


def style(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return a figure's specification with the report's fonts and sizes."""
    with alt.data_transformers.enable("default", max_rows=None):  # else 5,000
        spec: dict[str, Any] = chart.to_dict()
    spec["config"] = {
        "font": "system-ui, 'DejaVu Sans', sans-serif",
        "background": "transparent",
        "view": {"stroke": None},
        "axis": {
            "labelFontSize": 12,
            "labelOverlap": "greedy",
            "labelSeparation": 8,
            "titleFontSize": 12.5,
            "titleFontWeight": "normal",
            "gridOpacity": 0.45,
            "titlePadding": 8,
        },
        "legend": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
        "header": {"labelFontSize": 12},
    }
    return spec


def to_png(spec: dict[str, Any]) -> bytes:
    """Draw a specification as a PNG on white, at twice the size."""
    import vl_convert

    return vl_convert.vegalite_to_png(_printed(spec, "white"), scale=2)


def to_svg(spec: dict[str, Any]) -> bytes:
    """Draw a specification as an SVG."""
    import vl_convert

    return vl_convert.vegalite_to_svg(_printed(spec, "transparent")).encode()


def to_pdf(spec: dict[str, Any]) -> bytes:
    """Draw a specification as a PDF page of its own size."""
    import vl_convert

    return vl_convert.vegalite_to_pdf(_printed(spec, "white"))


def _printed(spec: dict[str, Any], background: str) -> dict[str, Any]:
    return {**spec, "config": {**spec["config"], "background": background, "font": "DejaVu Sans"}}
