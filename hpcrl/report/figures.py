"""The figures, each one Vega-Lite specification: drawn interactively in the HTML and written as PNG and SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from hpcrl.report.groups import curves

# Okabe and Ito's colours, told apart by readers with any common colour blindness; yellow and black are left out.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F"]
DASHES = {"": [1, 0], "eager": [1, 0], "lazy": [6, 3], "fused": [2, 2]}
_ROW = 26  # pixels of a line of the comparison


@dataclass(frozen=True)
class Figure:
    """One figure: file name, what it shows in words, and its specification."""

    name: str
    title: str
    text: str
    chart: alt.TopLevelMixin


def figures(rows: pd.DataFrame, episodes: pd.DataFrame, goal: float | None) -> list[Figure]:
    """Draw every figure that the data allow."""
    rows = rows.assign(
        line=_line_names(rows), rss_gib=rows["rss_peak"] / 1024**3, cpu_percent=rows["cpu_utilisation"] * 100
    )
    drawn = [_scores(rows, goal), _times(rows), _utilisation(rows)]
    for by, axis in (("episode", "episode"), ("time", "training time (s)")):
        data = curves(rows.drop(columns="line"), episodes, by)
        drawn.append(_curves(data, by, axis, goal))
    return [figure for figure in drawn if figure is not None]


def _line_names(rows: pd.DataFrame) -> pd.Series[Any]:
    """Name the lines by what differs among them: places and clusters only where there are several."""
    names = rows["what"]
    if rows["where"].nunique() > 1:
        names = names + " · " + rows["where"]
    if rows["cluster"].nunique() > 1:
        names = names + " · " + rows["cluster"]
    return names


def _colour(rows: pd.DataFrame) -> alt.Color:
    domain = sorted(rows["colour"].unique())
    scale = alt.Scale(domain=domain, range=[COLOURS[index % len(COLOURS)] for index in range(len(domain))])
    title = "framework" if (rows["colour"] != rows["what"]).any() else "configuration"
    return alt.Color("colour:N", scale=scale, title=title, legend=alt.Legend(symbolOpacity=1))


def _y(rows: pd.DataFrame) -> alt.Y:
    return alt.Y(
        "line:N",
        title=None,
        sort=sorted(rows["line"].unique()),
        axis=alt.Axis(labelLimit=420, labelPadding=8),
    )


def _height(rows: pd.DataFrame) -> int:
    return _ROW * max(2, rows["line"].nunique())


_WIDTH = 560


def _scores(rows: pd.DataFrame, goal: float | None) -> Figure | None:
    known = rows[rows["final_score"].notna()]
    if known.empty:
        return None
    data = known[["line", "colour", "seed", "final_score", "best_score", "outcome"]]
    top = max(float(known["final_score"].max()), goal or 0.0) * 1.05
    axis = "final score (mean return of 10 greedy episodes)"
    x = alt.X("final_score:Q", title=axis, scale=alt.Scale(domain=[0, top]))
    base = alt.Chart(data)
    points = base.mark_circle(size=70, opacity=0.75).encode(
        x=x,
        y=_y(rows),
        color=_colour(rows),
        tooltip=["line", "seed", alt.Tooltip("final_score", format=".1f"), "outcome"],
    )
    means = base.mark_tick(thickness=3, size=_ROW * 0.75, color="#7F7F7F").encode(
        x=alt.X("mean(final_score):Q", title=axis), y=_y(rows)
    )
    layers: list[Any] = [means, points]
    text = "Each dot is one seed, each tick the mean over seeds."
    if goal is not None:
        layers.insert(
            0,
            alt.Chart(pd.DataFrame({"goal": [goal]})).mark_rule(strokeDash=[4, 3], color="#7F7F7F").encode(x="goal:Q"),
        )
        text += f" The dashed line is the goal, {goal:g}."
    chart = alt.layer(*layers).properties(width=_WIDTH, height=_height(rows))
    return Figure("final-score", "Final score", text, chart)


# column -> name and colour, in the order in which they happen
_PARTS = {
    "setup_time": ("set-up (import, build)", "#E69F00"),
    "compile_time": ("compile, warm up", "#D55E00"),
    "training_time": ("training", "#0072B2"),
}


def _times(rows: pd.DataFrame) -> Figure | None:
    known = rows[rows["training_time"].notna()]
    if known.empty:
        return None
    long = known.melt(
        id_vars=["line", "seed"],
        value_vars=list(_PARTS),
        var_name="part",
        value_name="seconds",
    )
    long["order"] = long["part"].map({part: index for index, part in enumerate(_PARTS)})
    long["part"] = long["part"].map({part: name for part, (name, _) in _PARTS.items()})
    mean = long.groupby(["line", "part", "order"], as_index=False)["seconds"].mean()
    scale = alt.Scale(domain=[name for name, _ in _PARTS.values()], range=[colour for _, colour in _PARTS.values()])
    bars = (
        alt.Chart(mean)
        .mark_bar(height=_ROW * 0.6)
        .encode(
            x=alt.X("seconds:Q", title="time (s), mean over seeds", stack="zero"),
            y=_y(rows),
            color=alt.Color("part:N", scale=scale, title=None, legend=alt.Legend(orient="top", labelLimit=0)),
            order=alt.Order("order:Q"),
            tooltip=["line", "part", alt.Tooltip("seconds", format=".2f")],
        )
    )
    text = "Wall time until the first step (imports and building, then compiling and warming up), and of training."
    return Figure("training-time", "Training time", text, bars.properties(width=_WIDTH, height=_height(rows)))


_USAGE = (
    ("cpu_percent", "CPU of the job (% of its cores)"),
    ("machine_cpu_percent", "CPU of the whole machine (%)"),
    ("rss_gib", "RAM of the job, peak (GiB)"),
    ("machine_memory_percent", "RAM of the whole machine (%)"),
    ("gpu_percent", "GPU (%)"),
)


def _utilisation(rows: pd.DataFrame) -> Figure | None:
    panels = []
    for column, title in _USAGE:
        known = rows[rows[column].notna()]
        if known.empty:
            continue
        data = known[["line", "colour", "seed", column]].rename(columns={column: "value"})
        value = alt.X("mean(value):Q", title=title, scale=alt.Scale(zero=True))
        base = alt.Chart(data)
        bars = base.mark_bar(height=_ROW * 0.6, opacity=0.85).encode(x=value, y=_y(rows), color=_colour(rows))
        dots = base.mark_circle(size=22, color="#888888", opacity=0.9).encode(
            x=alt.X("value:Q", title=title),
            y=_y(rows),
            tooltip=["line", "seed", alt.Tooltip("value", format=".2f")],
        )
        panels.append((bars + dots).properties(width=250, height=_height(rows)))
    if not panels:
        return None
    without = (
        ""
        if any(column == "gpu_percent" and rows[column].notna().any() for column, _ in _USAGE)
        else " No GPU was read."
    )
    text = "The job's own processes beside the whole machine; bars are means over seeds, dots are seeds." + without
    return Figure("utilisation", "CPU, RAM and GPU utilisation", text, alt.concat(*panels, columns=2, spacing=28))


def _curves(data: pd.DataFrame, by: str, axis: str, goal: float | None) -> Figure | None:
    if data.empty:
        return None
    x = alt.X("x:Q", title=axis, axis=alt.Axis(tickCount=6))
    title_y = "return (mean of 20 episodes)"
    y = alt.Y("mean:Q", title=title_y)
    dashes = sorted(data["dash"].unique())
    encodings: dict[str, Any] = {"x": x, "color": _colour(data)}
    if dashes != [""]:
        scale = alt.Scale(domain=dashes, range=[DASHES.get(each, [4, 4]) for each in dashes])
        encodings["strokeDash"] = alt.StrokeDash(
            "dash:N", scale=scale, title="execution", legend=alt.Legend(symbolSize=700, symbolStrokeWidth=2)
        )
    base = alt.Chart(data)
    detail = [alt.Detail(f"{key}:N") for key in ("cluster", "where", "what")]
    band = base.mark_area(opacity=0.13).encode(
        x=x, y=alt.Y("low:Q", title=title_y), y2="high:Q", color=_colour(data), detail=detail
    )
    tips = [
        "what",
        "where",
        "cluster",
        alt.Tooltip("x", title=axis, format=".1f"),
        alt.Tooltip("mean", format=".1f"),
        "seeds",
    ]
    line = base.mark_line(strokeWidth=2).encode(y=y, detail=detail, tooltip=tips, **encodings)
    layers: list[Any] = [band, line]
    if goal is not None:
        # Of the same data, so that the figure can be split by place.
        layers.append(base.mark_rule(strokeDash=[4, 3], color="#7F7F7F").encode(y=alt.datum(goal)))
    chart: Any = alt.layer(*layers).properties(width=_WIDTH, height=280)
    if data[["cluster", "where"]].drop_duplicates().shape[0] > 1:
        data["place"] = data["cluster"] + ", " + data["where"]
        chart = (
            alt.layer(*layers, data=data)
            .properties(width=_WIDTH // 2, height=220)
            .facet(facet=alt.Facet("place:N", title=None), columns=2)
        )
    name = {"episode": "return-by-episode", "time": "return-by-time"}[by]
    title = {"episode": "Return against episodes", "time": "Return against time"}[by]
    text = "Training returns, the last 20 episodes averaged. Lines are means over seeds, bands span the seeds; a line ends where its shortest seed ends."
    return Figure(name, title, text, chart)


def style(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return a figure's specification with the report's fonts and sizes."""
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

    return vl_convert.vegalite_to_png(
        {**spec, "config": {**spec["config"], "background": "white", "font": "DejaVu Sans"}}, scale=2
    )


def to_svg(spec: dict[str, Any]) -> bytes:
    """Draw a specification as an SVG."""
    import vl_convert

    return vl_convert.vegalite_to_svg({**spec, "config": {**spec["config"], "font": "DejaVu Sans"}}).encode()
