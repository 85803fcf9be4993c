"""The table of the comparison, for the page, the terminal, LaTeX and CSV."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pandas as pd

from hpcrl.report import spreadsheet
from hpcrl.report.axes import texts_of, values
from hpcrl.report.design import in_gib, in_short
from hpcrl.report.groups import KEYS, Line
from hpcrl.report.score import Score
from hpcrl.report.statistics import Estimate

NOTHING = "–"
_ABOVE = ("machine CPU above idle (%)", "machine memory above idle (%)")
_SHORT = (
    "cluster", "configuration", "resources", "cells", "final", "at goal", "goal step", "goal s", "from start s", "train s",
    "wall s", "set-up s", "compile s", "CPU %", "RAM GiB", "GPU %", *_ABOVE,
)  # fmt: skip
WORDS = ("cluster", "configuration", "resources")
_PLACES = ("study", "cluster", "resources")  # left out if equal in all rows
_OF_TRAINING = ("setup_seconds_median", "compile_seconds_median")
_MOST_VALUES = 60  # maximum values of an axis that can be filtered and grouped


@dataclass(frozen=True)
class Table:
    """The comparison on the page: columns with information, rows, and the value of each axis for each row."""

    columns: list[str]
    rows: list[list[str]]
    axes: dict[str, list[str]] = field(default_factory=dict)


def columns(score: Score) -> list[str]:
    return [
        *WORDS, "cells", score.title, "at goal", "goal at step", "goal after (s)", "goal from start (s)",
        "training (s)" if score.trains else "command (s)",
        "wall (s)", "set-up (s)", "compile (s)", "CPU (%)", "RAM (GiB)", "GPU (%)", *_ABOVE,
    ]  # fmt: skip


def for_page(
    compared: list[Line], rows: pd.DataFrame, axes: pd.DataFrame, score: Score, has_goal: bool = False
) -> Table:
    """Return the columns with information, and the rows.

    Args:
        rows: the attempts that `compared` sums up; axes: the axes of their study, with the same index.
        has_goal: whether the study has a goal, so that none of the seeds at it is a result.
    """
    texts = [_row(line, True, has_goal) for line in compared]
    one_cluster = len({line.cluster for line in compared}) == 1
    names = columns(score)
    keep = [index for index in _used(texts) if not (one_cluster and names[index] == "cluster")]
    axis_values = {}
    one_each = rows.drop_duplicates(list(KEYS))
    places = dict(zip(zip(*(one_each[key] for key in KEYS), strict=True), one_each.index, strict=True))
    first = [places[line.study, line.cluster, line.what, line.where] for line in compared]
    for name in axes.columns:
        if 1 < len(values(axes[name])) <= _MOST_VALUES:
            axis_values[str(name)] = texts_of(axes.loc[first, name])
    return Table([names[index] for index in keep], [[row[index] for index in keep] for row in texts], axis_values)


def for_terminal(
    compared: list[Line], trains: bool = True, with_goal: Collection[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """Return the same in short form: places only if they differ, values without intervals.

    Args:
        with_goal: the studies that have a goal.
    """
    plain = {} if trains else {"final": "score", "train s": "command s"}
    names = ("study", *(plain.get(name, name) for name in _SHORT))
    rows = [[line.study, *_row(line, False, line.study in with_goal)] for line in compared]
    used = [index for index in _used(rows) if names[index] not in _ABOVE]  # too wide for a terminal
    keep = [index for index in used if names[index] not in _PLACES or len({row[index] for row in rows}) > 1]
    return [names[index] for index in keep], [[row[index] for index in keep] for row in rows]


def to_latex(table: Table) -> str:
    """Return a table for LaTeX's package booktabs."""
    frame = pd.DataFrame(table.rows, columns=table.columns)
    sides = "".join("l" if column in WORDS else "r" for column in table.columns)
    return str(
        frame.to_latex(index=False, escape=True, column_format=sides).replace("–", "--").replace("×", r"$\times$")
    )


def to_csv(compared: Sequence[Line], trains: bool = True) -> str:
    """Return the comparison as plain numbers, with units in the names of the columns and two columns for an interval.

    Args:
        trains: whether any study trains. If not, there is no goal, and the time is that of the command.
    """
    frame = pd.DataFrame([_plain(line) for line in compared])
    if not trains and compared:
        frame = frame[[name for name in frame.columns if "goal" not in name and name not in _OF_TRAINING]]
        frame.columns = frame.columns.str.replace("training_", "command_")
    return spreadsheet.to_csv(frame)


def _plain(line: Line) -> dict[str, object]:
    return {
        "study": line.study,
        "cluster": line.cluster,
        "configuration": line.what,
        "resources": line.where,
        "cells": line.cells,
        "cells_completed": line.completed,
        "score_median": line.final.value if line.final else None,
        "score_low": line.final.low if line.final else None,
        "score_high": line.final.high if line.final else None,
        "score_interval_percent": 100 * line.final.level if line.final and line.final.low is not None else None,
        "seeds_at_goal": line.at_goal,
        "goal_step_median": line.goal_step,
        "goal_training_seconds_median": line.goal_time,
        "goal_wall_seconds_median": line.goal_wall_time,
        **_time("training", line.training),
        **_time("wall", line.wall),
        "setup_seconds_median": line.setup_time,
        "compile_seconds_median": line.compile_time,
        "cpu_percent_median": line.cpu,
        "memory_peak_bytes_median": line.memory,
        "gpu_percent_median": line.gpu,
        "machine_cpu_above_idle_percent_median": line.cpu_above,
        "machine_memory_above_idle_percent_median": line.memory_above,
    }


def _time(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    return {
        f"{name}_seconds_geometric_mean": estimate.value if estimate else None,
        f"{name}_seconds_low": estimate.low if estimate else None,
        f"{name}_seconds_high": estimate.high if estimate else None,
    }


def number(value: float | None) -> str:
    return NOTHING if value is None else in_short(value)


def _used(rows: list[list[str]]) -> list[int]:
    return [index for index in range(len(rows[0]) if rows else 0) if any(row[index] != NOTHING for row in rows)]


def estimate_of(found: Estimate | None, with_interval: bool) -> str:
    """Write a value, with its interval if there is one."""
    if found is None:
        return NOTHING
    if not with_interval or found.low is None or found.high is None or found.low == found.high:
        return in_short(found.value)
    return f"{in_short(found.value)} ({in_short(found.low)} to {in_short(found.high)})"


def _row(line: Line, with_interval: bool, has_goal: bool) -> list[str]:
    return [
        line.cluster,
        line.what,
        line.where,
        str(line.cells) if line.completed == line.cells else f"{line.completed} of {line.cells}",
        estimate_of(line.final, with_interval),
        f"{line.at_goal} of {line.cells}" if has_goal or line.at_goal else NOTHING,
        number(line.goal_step),
        number(line.goal_time),
        number(line.goal_wall_time),
        estimate_of(line.training, with_interval),
        estimate_of(line.wall, with_interval),
        number(line.setup_time),
        number(line.compile_time),
        number(line.cpu),
        in_gib(line.memory) if line.memory else NOTHING,
        number(line.gpu),
        number(line.cpu_above),
        number(line.memory_above),
    ]
