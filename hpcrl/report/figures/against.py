"""A panel with a value of each run against a number, such as that of cores."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from hpcrl.report.figures.drawing import HEIGHT, Panel, axis_title, colour, rounded, scale_of, stroke
from hpcrl.report.statistics import median


def against(
    data: pd.DataFrame, column: str, title: str, x_title: str, panel: str = "", logarithmic: bool = False
) -> Panel:
    """Draw each run as a dot, and medians over runs as a line with their intervals (order statistics).

    Args:
        data: `x`, `what`, `colour`, `hex`, `dash`, `seed` and the column.
        logarithmic: whether the values have a logarithmic axis if the maximum is more than 20 times the minimum.
    """
    known = data[data[column].notna()].rename(columns={column: "value"})
    rows = []
    for (what, x), group in known.groupby(["what", "x"], sort=True):
        middle = median(np.asarray(group["value"].to_numpy(float)))
        low, high = (np.nan, np.nan) if middle.low is None else (middle.low, middle.high)
        first = group.iloc[0]
        rows.append(
            {"what": what, "x": x, "value": middle.value, "low": low, "high": high, "seeds": len(group),
             "colour": first["colour"], "hex": first["hex"], "dash": first["dash"]}
        )  # fmt: skip
    middles = pd.DataFrame(rows)
    counts = sorted({float(count) for count in known["x"]})
    scale = alt.Scale(type="log", base=2, nice=False, padding=16) if counts[-1] > 4 else alt.Scale(zero=False, padding=16)  # fmt: skip
    x = alt.X("x:Q", title=x_title, scale=scale, axis=alt.Axis(values=counts, format="d"))
    y_scale, is_log = scale_of(known["value"]) if logarithmic else (alt.Scale(zero=True, nice=True), False)
    y_title = axis_title(title, is_log)
    y = alt.Y("value:Q", title=y_title, scale=y_scale, axis=alt.Axis(tickCount=6))
    tips = [alt.Tooltip("what", title="configuration"), alt.Tooltip("x", title=x_title)]
    named = [alt.Tooltip(name, format=",.4~r") for name in ("low", "high")]
    base = alt.Chart(rounded(middles.drop(columns="hex"))).encode(x=x, color=colour(known), detail="what:N")
    dots = alt.Chart(rounded(known[["what", "x", "seed", "value", "colour"]])).mark_circle(size=26, opacity=0.6)
    chart = alt.layer(
        base.mark_rule(strokeWidth=5, opacity=0.3).encode(y=alt.Y("low:Q", title=y_title, scale=y_scale), y2="high:Q"),
        base.mark_line(strokeWidth=2).encode(y=y, **stroke(known)),
        dots.encode(x=x, y=y, color=colour(known), tooltip=[*tips, "seed", alt.Tooltip("value", title=title, format=",.4~r")]),
        base.mark_tick(thickness=3, size=16, orient="horizontal").encode(
            y=y, tooltip=[*tips, alt.Tooltip("value", title=f"median, {title}", format=",.4~r"), *named, "seeds"]
        ),
    )  # fmt: skip
    table = middles[["what", "x", "value", "low", "high", "seeds"]]
    table = table.set_axis(["configuration", x_title, f"{title}, median", "from", "to", "seeds"], axis=1)
    return Panel(chart.properties(height=HEIGHT), table, panel)
