"""Functions for all figures: Vega-Lite panels, at the page's width in HTML, side by side in PNG, SVG and PDF."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt
import pandas as pd

from hpcrl.report.design import DASHES, FRAMEWORKS, dash, in_short, natural

ROW = 26  # pixels of a line of the comparison
_LETTERS = 46  # of a name in one line of text
HEIGHT = 260  # pixels of a panel with curves
_PAPER_WIDTH = 460  # of a panel, in pixels, in the files
_FAR = 20  # ratio of the values from which an axis is logarithmic
MOST_VALUES = 150  # rows of a figure's table


@dataclass(frozen=True)
class Key:
    """An entry of a figure's legend: a colour, or the strokes and gaps of a line."""

    name: str
    colour: str = ""
    dash: str = ""


@dataclass(frozen=True)
class Panel:
    """A part of a figure, with its values.

    Args:
        rows: number of lines of the comparison below each other; 0 if the panel has none.
    """

    chart: alt.TopLevelMixin
    values: pd.DataFrame
    title: str = ""
    rows: int = 0


@dataclass(frozen=True)
class Figure:
    """One figure: file name, title, caption, panels and legend."""

    name: str
    title: str
    text: str
    panels: tuple[Panel, ...]
    legend: tuple[Key, ...] = field(default=())


def ordered(names: pd.Series[Any]) -> list[str]:
    """Return the names of lines, modes or colours in the order of all figures: natural order, frameworks as in the table."""
    known = [name for name, _ in FRAMEWORKS.values()]
    unique = {str(name) for name in names}
    if unique <= set(known):
        return [name for name in known if name in unique]
    return sorted(unique, key=natural)


def colour(rows: pd.DataFrame, title: str = "") -> alt.Color:
    """Encode the colours from `with_groups`."""
    names = ordered(rows["colour"])
    hues = dict(zip(rows["colour"], rows["hex"], strict=True))
    return alt.Color(
        "colour:N", scale=alt.Scale(domain=names, range=[hues[name] for name in names]), title=title or None
    )


def stroke(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the encoding of execution modes; none if there are no modes."""
    names = _modes(rows)
    if not names:
        return {}
    scale = alt.Scale(domain=names, range=[dash(name) for name in names])
    return {"strokeDash": alt.StrokeDash("dash:N", scale=scale, title=None)}


def legend(rows: pd.DataFrame, lines: bool = False) -> tuple[Key, ...]:
    """Return the legend's entries: colours and, for lines, modes."""
    names = ordered(rows["colour"])
    hues = dict(zip(rows["colour"], rows["hex"], strict=True))
    keys = [Key(name, colour=hues[name]) for name in names] if len(names) > 1 else []
    if lines:
        keys += [Key(mode, dash=" ".join(map(str, dash(mode)))) for mode in _modes(rows)]
    return tuple(keys)


def _modes(rows: pd.DataFrame) -> list[str]:
    modes = {str(name) for name in rows["dash"]} - {""}
    return [*(name for name in DASHES if name in modes), *sorted(modes - set(DASHES))]


def scale_of(values: pd.Series[Any], zero: bool = True) -> tuple[alt.Scale, bool]:
    """Return the scale for values, and whether it is logarithmic: if the maximum is more than 20 times the minimum."""
    known = values.dropna()
    if len(known) and known.min() > 0 and known.max() > _FAR * known.min():
        return alt.Scale(type="log", nice=True), True
    return alt.Scale(zero=zero, nice=True), False


def axis_title(title: str, logarithmic: bool) -> str:
    return f"{title}, log" if logarithmic else title


def y_lines(names: list[str]) -> alt.Y:
    """Return the encoding of lines by name. Long names have two lines of text."""
    long = {name: _in_two(name) for name in names if len(name) > _LETTERS}
    two: dict[str, Any] = (
        {"labelExpr": f"({json.dumps(long)})[datum.label] || datum.label", "labelLineHeight": 12, "labelOverlap": False}
        if long
        else {}
    )
    return alt.Y("line:N", title=None, sort=names, axis=alt.Axis(labelLimit=300, labelPadding=8, **two))


def _in_two(name: str) -> list[str]:
    """Cut a name at the space that is nearest to its middle."""
    spaces = [place for place, letter in enumerate(name) if letter == " "]
    if not spaces:
        return [name]
    middle = min(spaces, key=lambda place: abs(place - len(name) / 2))
    return [name[:middle], name[middle + 1 :]]


def by_place(data: pd.DataFrame, of: Sequence[str] = ("apart", "cluster", "where")) -> list[tuple[str, pd.DataFrame]]:
    """Split the data by place, and by what colours and dashes do not tell, one panel each. The parts of a title that differ are named."""
    several = [name for name in of if data[name].nunique() > 1]
    titles = data[several].agg(", ".join, axis=1) if several else pd.Series("", data.index)
    return [(title, data[titles == title]) for title in sorted(set(titles), key=natural)]


def rounded(data: pd.DataFrame, digits: int = 5) -> pd.DataFrame:
    """Round numbers to the digits that a figure can show, which makes the page smaller."""
    floats = data.select_dtypes("float").columns
    return data.assign(**{name: [_round(value, digits) for value in data[name]] for name in floats})


def _round(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}") if value == value else value


def thinned(data: pd.DataFrame, by: list[str], points: int = 11) -> pd.DataFrame:
    """Keep some points of each curve for the table of values, including the first and the last."""
    kept = [
        group.iloc[sorted({round(place * (len(group) - 1) / (points - 1)) for place in range(points)})]
        for _, group in data.groupby(by, sort=False)
    ]
    return pd.concat(kept, ignore_index=True) if kept else data


def as_table(figure: Figure) -> dict[str, Any]:
    """Return the values of a figure as a table: heads, rows, and how many rows were left out."""
    frames = []
    for panel in figure.panels:
        frame = panel.values.astype(object)
        if len(figure.panels) > 1:
            frame = frame.rename(columns={name: name.removeprefix(f"{panel.title}, ") for name in frame.columns})
            frame.insert(0, "panel", panel.title)
        frames.append(frame)
    heads = list(dict.fromkeys(name for frame in frames for name in frame.columns))
    share = max(1, MOST_VALUES // max(1, len(frames)))
    rows = [
        [_text(row.get(head)) for head in heads] for frame in frames for row in frame.head(share).to_dict("records")
    ]
    return {"heads": heads, "rows": rows, "more": sum(max(0, len(frame) - share) for frame in frames)}


def _text(value: Any) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return in_short(float(value))
    return str(value)


# --- specifications

_CONFIG: dict[str, Any] = {
    "font": "system-ui, 'DejaVu Sans', sans-serif",
    "background": "transparent",
    "view": {"stroke": None},
    "mark": {"aria": False},
    "text": {"color": "#57606a"},
    "axis": {
        "aria": False,
        "labelFontSize": 12,
        "labelOverlap": "greedy",
        "labelSeparation": 8,
        "titleFontSize": 12.5,
        "titleFontWeight": "normal",
        "gridOpacity": 0.45,
        "titlePadding": 8,
    },
    "legend": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 260,
        "symbolOpacity": 1,
    },
    "title": {"fontSize": 12.5, "fontWeight": "normal"},
}


def for_screen(panel: Panel, description: str = "") -> dict[str, Any]:
    """Return the specification that follows the width of its HTML element. The page draws the legend."""
    spec = _specification(panel)
    spec["description"] = description
    spec["width"] = "container"
    if panel.rows:
        spec["height"] = panel.rows * ROW  # not a step: Vega-Lite warns of it together with a width that fits
    spec["autosize"] = {"type": "fit-x" if panel.rows else "fit", "contains": "padding"}
    spec["config"] = {name: value for name, value in _CONFIG.items() if name != "text"} | {"legend": {"disable": True}}
    spec["usermeta"] = {"rows": panel.rows}
    return spec


def for_paper(figure: Figure) -> dict[str, Any]:
    """Return one specification of all panels, two in a row, each with its title and legend."""
    parts = []
    for panel in figure.panels:
        part = _specification(panel) | {"width": _PAPER_WIDTH}
        if panel.title:
            part["title"] = panel.title
        parts.append(part)
    config = _CONFIG
    if any(panel.rows for panel in figure.panels):  # values are to the right of the rows
        config = _CONFIG | {"legend": _CONFIG["legend"] | {"offset": 64}}
    if len(parts) == 1:
        return {**parts[0], "config": config}
    _share_scales(parts)
    datasets: dict[str, Any] = {}
    for part in parts:
        datasets |= part.pop("datasets", {})
        part.pop("$schema", None)
        part.pop("padding", None)
    return {
        "$schema": alt.SCHEMA_URL,
        "concat": parts,
        "columns": 2,
        "spacing": 64 if any(panel.rows for panel in figure.panels) else 28,
        "datasets": datasets,
        "config": config,
    }


def _share_scales(parts: list[dict[str, Any]]) -> None:
    """Give all panels one scale of colours and one of dashes, because Vega-Lite unites their domains and keeps the first range."""
    for channel in ("color", "strokeDash"):
        scales = [scale for part in parts for scale in _scales(part, channel)]
        values = {name: value for scale in scales for name, value in zip(scale["domain"], scale["range"], strict=True)}
        for scale in scales:
            scale |= {"domain": list(values), "range": list(values.values())}


def _scales(spec: Any, channel: str) -> list[dict[str, Any]]:
    """Return the scales of a channel, in all layers, that list their values."""
    if isinstance(spec, list):
        return [scale for part in spec for scale in _scales(part, channel)]
    if not isinstance(spec, dict):
        return []
    scales = [scale for name, part in spec.items() if name != "datasets" for scale in _scales(part, channel)]
    own = spec.get(channel)
    if isinstance(own, dict) and isinstance(scale := own.get("scale"), dict) and {"domain", "range"} <= set(scale):
        scales.append(scale)
    return scales


def _specification(panel: Panel) -> dict[str, Any]:
    with alt.data_transformers.enable("default", max_rows=None):  # else 5,000
        spec: dict[str, Any] = panel.chart.to_dict(
            validate=False
        )  # only the tests validate, because it takes most of the time
    spec.pop("config", None)
    return spec
