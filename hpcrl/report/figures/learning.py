"""Figures of learning: scores, learning curves, evaluations, time to the goal."""

from __future__ import annotations

import pandas as pd

from hpcrl.formats.runs import goal_wall_time
from hpcrl.report.curves import By, band_in_words, equal_lines, evaluations, left_out, returns
from hpcrl.report.design import capitalised
from hpcrl.report.figures.drawing import Figure, legend, ordered
from hpcrl.report.figures.marks import bands, dots, in_words
from hpcrl.report.score import Score

_AXES: dict[By, str] = {
    "step": "environment steps",
    "time": "time since the record's start (s)",
    "episode": "episode",
}


def figures(rows: pd.DataFrame, episodes: pd.DataFrame, goal: float | None, score: Score) -> list[Figure | None]:
    return [
        scores(rows, goal, score),
        _time_to_goal(rows, goal),
        _curves(rows, episodes, "step", goal, score),
        _curves(rows, episodes, "time", goal, score),
        _curves(rows, episodes, "episode", goal, score),
        _evaluations(rows, episodes, "step", goal),
        _evaluations(rows, episodes, "time", goal),
    ]


def scores(rows: pd.DataFrame, goal: float | None, score: Score) -> Figure | None:
    known = rows[rows["final_score"].notna()]
    if known.empty:
        return None
    values = [*known["final_score"], goal or 0.0, 0.0]
    margin = (max(values) - min(values)) * 0.05 or 1.0
    domain = [min(values) - margin * (min(values) < 0), max(values) + margin * (max(values) > 0)]
    panel = dots(known, "final_score", score.axis, "median", rule=goal, names=ordered(rows["line"]), domain=domain)
    text = f"{score.meaning} {in_words(known, 'final_score', 'median')}"
    if goal is not None:
        text += f" The dashed line is the goal, {goal:,g}."
    return Figure("final-score", capitalised(score.title), text, (panel,), legend(known))


def _time_to_goal(rows: pd.DataFrame, goal: float | None) -> Figure | None:
    rows = rows.assign(from_start=goal_wall_time(rows))
    known = rows[rows["from_start"].notna()]
    if known.empty or goal is None:
        return None
    missed = rows.groupby("line")["from_start"].agg(lambda column: column.notna().sum())
    notes = {str(line): "no seed reached it" for line, number in missed.items() if number == 0}
    panel = dots(known, "from_start", _AXES["time"], "median", names=ordered(rows["line"]), notes=notes)
    text = (
        f"Time at the first evaluation that reached {goal:,g}, from the start of the record, including imports and compiling. "
        f"Only seeds that reached it are drawn. {in_words(known, 'from_start', 'median')}"
    )
    if count := len(rows) - len(known):
        text += f" {count:,} of {len(rows):,} cells did not reach it."
    return Figure("time-to-goal", "Time to the goal", text, (panel,), legend(known))


def axis_of(by: By, score: Score) -> str:
    """Return the title of a curve's x axis. The steps of a command may not be those of an environment."""
    if score.command and by != "time":
        return {"step": "steps", "episode": "report"}[by]
    return _AXES[by]


def _curves(rows: pd.DataFrame, episodes: pd.DataFrame, by: By, goal: float | None, score: Score) -> Figure | None:
    name = score.name or "return"
    window = 1 if score.name else 20
    data = returns(rows, episodes, by, window=window, name=name)
    if data.empty:
        return None
    title = {"step": "steps" if score.command else "environment steps", "time": "time"}.get(
        by, axis_of(by, score) + "s"
    )
    panels = bands(
        data,
        axis_of(by, score),
        name if score.name else "return (mean of 20 episodes)",
        goal,
        logarithmic=by == "time",
    )
    what = f"Values of {name} as reported." if score.name else "Returns of training, the last 20 episodes averaged."
    text = f"{what} {band_in_words(data)}{equal_lines(data)}{_start(by) if score.trains else ''}{_without(rows, by)}"
    heading = f"{capitalised(name)} against {title}"
    kind = "return" if score.trains else "value"
    return Figure(f"{kind}-by-{by}", heading, text, panels, legend(data, lines=True))


def _evaluations(rows: pd.DataFrame, episodes: pd.DataFrame, by: By, goal: float | None) -> Figure | None:
    data = evaluations(rows, episodes, by)
    if data.empty:
        return None
    panels = bands(data, _AXES[by], "return of evaluations", goal, logarithmic=by == "time")
    title = {"step": "environment steps", "time": "time", "episode": "episodes"}[by]
    text = f"Mean returns of the greedy policy, evaluated during training. {band_in_words(data)}{equal_lines(data)}{_start(by)}{_without(rows, by)}"
    return Figure(f"evaluation-by-{by}", f"Evaluations against {title}", text, panels, legend(data, lines=True))


def _start(by: By) -> str:
    return " A line can begin only at the first step, after imports and compiling." if by == "time" else ""


def _without(rows: pd.DataFrame, by: By) -> str:
    return "" if by == "step" else left_out(rows)
