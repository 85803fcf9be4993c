"""Figures of a search for hyperparameters: history, parameters, pairs, evaluations of its trials, importance."""

from __future__ import annotations

import itertools
from typing import Any

import altair as alt
import pandas as pd

from hpcrl.report.design import capitalised
from hpcrl.report.figures.drawing import HEIGHT, ROW, Figure, Key, Panel, rounded
from hpcrl.report.search import Search, value_text

_BEST, _OTHER = "#b5462f", "#3b6ea5"
_OUTCOMES = {"completed": _OTHER, "pruned": "#b08a2e", "diverged": "#7a4fa3", "failed": _BEST}
_COLOURS = alt.Scale(scheme="viridis")
_IN_LINES = alt.Axis(labelAngle=0, labelOverlap=False, labelExpr="split(datum.value, ' ')")  # one word in each
_MAPPED = 3  # parameters of which all pairs are drawn


def figures(search: Search) -> list[Figure]:
    """Draw every figure for which the trials have values."""
    drawn = [
        _history(search),
        _parameters(search),
        _parallel(search),
        _contour(search),
        _evaluations(search),
        _importances(search),
    ]
    return [figure for figure in drawn if figure is not None]


def _title(search: Search) -> str:
    return search.objective.replace("_", " ")


def _searches(search: Search) -> list[tuple[str, pd.DataFrame]]:
    """Return the trials that completed, of each search that has some."""
    done = search.trials[search.trials["value"].notna()]
    return [(str(name), group) for name, group in done.groupby("search", sort=True)]


def _heading(name: str, every: list[tuple[str, pd.DataFrame]]) -> str:
    return name if len(every) > 1 else ""


def _history(search: Search) -> Figure | None:
    panels = []
    every = _searches(search)
    for name, done in every:
        data = done.sort_values("trial")[["trial", "value"]]
        data["best so far"] = data["value"].cummax() if search.maximised else data["value"].cummin()
        base = alt.Chart(rounded(data)).encode(x=alt.X("trial:Q", title="trial", axis=alt.Axis(format="d")))
        chart = alt.layer(
            base.mark_line(interpolate="step-after", color=_BEST, strokeWidth=2).encode(y=alt.Y("best so far:Q", title=_title(search))),
            base.mark_circle(size=40, color=_OTHER, opacity=0.8).encode(y=alt.Y("value:Q", title=_title(search)), tooltip=["trial", "value"]),
        )  # fmt: skip
        panels.append(
            Panel(
                chart.properties(height=HEIGHT), data.rename(columns={"value": _title(search)}), _heading(name, every)
            )
        )
    if not panels:
        return None
    text = (
        f"The {_title(search)} of each trial that completed, and the best so far (line). Trials ran in several processes, so "
        "that their numbers need not be the order in which they ended."
    )
    return Figure("search-history", "The search", text, tuple(panels))


def _parameters(search: Search) -> Figure | None:
    panels = []
    every = _searches(search)
    for name, done in every:
        for parameter in search.parameters:
            if done[parameter].nunique() < 2:
                continue
            data = pd.DataFrame({"trial": done["trial"], "x": done[parameter], "value": done["value"]})
            chart = (
                alt.Chart(_plain(data))
                .mark_circle(size=40, color=_OTHER, opacity=0.8)
                .encode(
                    x=_axis(data["x"], "x", parameter),
                    y=alt.Y("value:Q", title=_title(search), scale=alt.Scale(zero=False)),
                    tooltip=["trial", alt.Tooltip("x", title=parameter), "value"],
                )
                .properties(height=HEIGHT)
            )
            table = data.set_axis(["trial", parameter.replace("_", " "), _title(search)], axis=1)
            heading = parameter.replace("_", " ")
            panels.append(Panel(chart, table, f"{name}: {heading}" if len(every) > 1 else heading))
    if not panels:
        return None
    text = f"The {_title(search)} of each trial that completed, against each parameter."
    return Figure("search-parameters", "Parameters of the search", text, tuple(panels))


def _parallel(search: Search) -> Figure | None:
    """One line for each trial over all parameters; each axis goes from the smallest to the largest drawn value."""
    panels = []
    every = _searches(search)
    for name, done in every:
        varied = [column for column in search.parameters if done[column].nunique() > 1]
        if len(varied) < 2 or len(done) < 2:
            continue
        rows = []
        for parameter in [*varied, "value"]:
            places, shown = _places(done[parameter])
            title = _title(search) if parameter == "value" else parameter.replace("_", " ")
            rows += [
                {"trial": trial, "axis": title, "place": place, "drawn": said, "score": score}
                for trial, place, said, score in zip(done["trial"], places, shown, done["value"], strict=True)
            ]
        data = pd.DataFrame(rows)
        order = [axis.replace("_", " ") for axis in varied] + [_title(search)]
        chart = (
            alt.Chart(rounded(data))
            .mark_line(opacity=0.7, point=True)
            .encode(
                x=alt.X("axis:N", sort=order, title=None, axis=_IN_LINES),
                y=alt.Y("place:Q", title="place between smallest and largest", scale=alt.Scale(domain=[0, 1])),
                detail="trial:N",
                color=alt.Color("score:Q", title=_title(search), scale=_COLOURS),
                tooltip=["trial", "axis", "drawn"],
            )
            .properties(height=HEIGHT)
        )
        panels.append(Panel(chart, data[["trial", "axis", "drawn"]], _heading(name, every)))
    if not panels:
        return None
    text = (
        "Each line is a trial that completed. Each axis goes from the smallest value drawn (0) to the largest (1); wide ranges of positive "
        "numbers are logarithmic. The colour is the objective, from dark (lowest) to yellow (highest)."
    )
    return Figure("search-parallel", "Trials over all parameters", text, tuple(panels))


def _contour(search: Search) -> Figure | None:
    """The pairs of the three parameters that matter most, as maps of the trials: with few trials a surface between them would be invented."""
    panels = []
    every = _searches(search)
    for name, done in every:
        varied = [parameter for parameter in search.parameters if done[parameter].nunique() > 1]
        if not search.importance.empty:
            ranks = search.importance[search.importance["search"] == name].set_index("parameter")["importance"]
            varied.sort(key=lambda name, ranks=ranks: -float(ranks.get(name, 0.0)))  # type: ignore[misc]
        for first, second in itertools.combinations(varied[:_MAPPED], 2):
            both = f"{first}, {second}".replace("_", " ")
            panels.append(_map(search, done, first, second, f"{name}: {both}" if len(every) > 1 else both))
    if not panels:
        return None
    text = (
        "The parameters with the largest importance, two at a time; the colour is the objective of each trial that completed, from dark (lowest) to "
        "yellow (highest)."
    )
    return Figure("search-map", "Two parameters together", text, tuple(panels))


def _map(search: Search, done: pd.DataFrame, first: str, second: str, heading: str) -> Panel:
    data = pd.DataFrame({"trial": done["trial"], "x": done[first], "y": done[second], "value": done["value"]})
    chart = (
        alt.Chart(_plain(data))
        .mark_circle(size=110, opacity=0.9)
        .encode(
            x=_axis(data["x"], "x", first),
            y=_axis(data["y"], "y", second),
            color=alt.Color("value:Q", title=_title(search), scale=_COLOURS),
            tooltip=["trial", alt.Tooltip("x", title=first), alt.Tooltip("y", title=second), "value"],
        )
        .properties(height=HEIGHT)
    )
    names = ["trial", first.replace("_", " "), second.replace("_", " "), _title(search)]
    return Panel(chart, data.set_axis(names, axis=1), heading)


def _evaluations(search: Search) -> Figure | None:
    data = search.evaluations.merge(search.trials[["cell", "search", "trial", "outcome"]], on="cell")
    if data.empty:
        return None
    panels = []
    groups = list(data.groupby("search", sort=True))
    for name, group in groups:
        shown = group[["trial", "step", "return", "outcome"]]
        chart = (
            alt.Chart(rounded(shown))
            .mark_line(strokeWidth=1.5, opacity=0.75, point=alt.OverlayMarkDef(size=14))
            .encode(
                x=alt.X("step:Q", title="environment steps"),
                y=alt.Y("return:Q", title="return of evaluations"),
                detail="trial:N",
                color=alt.Color(
                    "outcome:N",
                    title="outcome",
                    scale=alt.Scale(domain=list(_OUTCOMES), range=list(_OUTCOMES.values())),
                ),
                tooltip=["trial", "step", "return", "outcome"],
            )
            .properties(height=HEIGHT)
        )  # fmt: skip
        panels.append(Panel(chart, shown, str(name) if len(groups) > 1 else ""))
    text = "Mean returns of the evaluations of each trial, by which the pruner ends trials."
    keys = tuple(Key(name, colour) for name, colour in _OUTCOMES.items() if (data["outcome"] == name).any())
    return Figure("search-evaluations", "Evaluations of the trials", text, tuple(panels), keys)


def _importances(search: Search) -> Figure | None:
    if search.importance.empty:
        return None
    panels = []
    groups = list(search.importance.groupby("search", sort=True))
    for name, group in groups:
        shown = group[["parameter", "importance"]]
        chart = (
            alt.Chart(rounded(shown.assign(parameter=shown["parameter"].str.replace("_", " "))))
            .mark_bar(color=_OTHER)
            .encode(
                x=alt.X("importance:Q", title="share", axis=alt.Axis(format="%")),
                y=alt.Y("parameter:N", sort="-x", title=None),
                tooltip=["parameter", alt.Tooltip("importance", format=".1%")],
            )
            .properties(height=ROW * len(shown))
        )
        panels.append(Panel(chart, shown, str(name) if len(groups) > 1 else "", rows=len(shown)))
    text = (
        "How much of the difference between the best tenth of the trials and all of them goes with each parameter alone (PED-ANOVA, Watanabe et al. "
        "2023, by Optuna). With few trials it is rough."
    )
    return Figure("search-importance", "Importance of the parameters", text, tuple(panels))


def _plain(data: pd.DataFrame) -> pd.DataFrame:
    """Write true and false as words, which are categories."""
    return rounded(data.assign(**{name: _words(data[name]) for name in ("x", "y") if name in data}))


def _words(values: pd.Series[Any]) -> pd.Series[Any]:
    return values.map(lambda value: str(value).lower() if isinstance(value, bool) else value)


def _is_category(values: pd.Series[Any]) -> bool:
    return bool(values.map(lambda value: isinstance(value, str | bool)).any())


def _axis(values: pd.Series[Any], channel: str, name: str) -> Any:
    """Return the axis of a parameter: categories, numbers, or their logarithms if the range is wide."""
    make = alt.X if channel == "x" else alt.Y
    title = capitalised(name.replace("_", " "))
    if _is_category(values):
        return make(f"{channel}:N", title=title)
    low, high = float(values.min()), float(values.max())
    scale = alt.Scale(type="log", nice=False, padding=12) if low > 0 and high / low > 50 else alt.Scale(zero=False, padding=12)  # fmt: skip
    return make(f"{channel}:Q", title=title, scale=scale)


def _places(values: pd.Series[Any]) -> tuple[list[float], list[str]]:
    """Return where each value is between the smallest (0) and the largest (1), and the values as texts."""
    import numpy as np

    if _is_category(values):
        names = sorted({value_text(value) for value in values})
        most = max(1, len(names) - 1)
        return [names.index(value_text(value)) / most for value in values], [value_text(value) for value in values]
    numbers = values.to_numpy(float)
    if numbers.min() > 0 and numbers.max() / numbers.min() > 50:
        numbers = np.log(numbers)
    width = float(numbers.max() - numbers.min()) or 1.0
    return [float(number) for number in (numbers - numbers.min()) / width], [value_text(value) for value in values]
