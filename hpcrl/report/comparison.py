"""The table of the comparison, for the page, the terminal and LaTeX."""

from __future__ import annotations

import pandas as pd

from hpcrl.report.groups import Line

NOTHING = "–"
COLUMNS = (
    "cluster", "configuration", "resources", "cells", "final score", "at goal", "goal at step", "goal after (s)",
    "goal from start (s)", "training (s)", "wall (s)", "set-up (s)", "compile (s)", "CPU (%)", "RAM (GiB)", "GPU (%)",
)  # fmt: skip
_SHORT = (
    "cluster", "configuration", "resources", "cells", "final", "at goal", "goal step", "goal s", "from start s", "train s",
    "wall s", "set-up s", "compile s", "CPU %", "RAM GiB", "GPU %",
)  # fmt: skip
_PLACES = ("study", "cluster", "resources")  # left out where all rows say the same


def for_page(compared: list[Line]) -> tuple[list[str], list[list[str]]]:
    """Return the columns that say something, and the rows."""
    rows = [_row(line, with_interval=True) for line in compared]
    one_cluster = len({line.cluster for line in compared}) == 1
    keep = [index for index in _used(rows) if not (one_cluster and COLUMNS[index] == "cluster")]
    return [COLUMNS[index] for index in keep], [[row[index] for index in keep] for row in rows]


def for_terminal(compared: list[Line]) -> tuple[list[str], list[list[str]]]:
    """Return the same in short words: places only where they differ, values without their intervals."""
    names = ("study", *_SHORT)
    rows = [[line.study, *_row(line, with_interval=False)] for line in compared]
    keep = [index for index in _used(rows) if names[index] not in _PLACES or len({row[index] for row in rows}) > 1]
    return [names[index] for index in keep], [[row[index] for index in keep] for row in rows]


def to_latex(columns: list[str], rows: list[list[str]]) -> str:
    """Return a table for LaTeX's package booktabs."""
    frame = pd.DataFrame(rows, columns=columns)
    words = ("cluster", "configuration", "resources")
    sides = "".join("l" if column in words else "r" for column in columns)
    return str(
        frame.to_latex(index=False, escape=True, column_format=sides).replace("–", "--").replace("×", r"$\times$")
    )


def number(value: float | None, digits: int = 1) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _used(rows: list[list[str]]) -> list[int]:
    return [index for index in range(len(rows[0])) if any(row[index] != NOTHING for row in rows)]


def _row(line: Line, with_interval: bool) -> list[str]:
    score = number(line.final_score)
    if with_interval and line.final_interval and line.final_interval[0] != line.final_interval[1]:
        score += f" ({line.final_interval[0]:.0f} to {line.final_interval[1]:.0f})"
    return [
        line.cluster,
        line.what,
        line.where,
        str(line.cells) if line.completed == line.cells else f"{line.completed} of {line.cells}",
        score,
        f"{line.at_goal} of {line.cells}" if line.final_score is not None or line.at_goal else NOTHING,
        number(line.goal_step, 0),
        number(line.goal_time),
        number(line.goal_wall_time),
        number(line.training_time),
        number(line.wall_time),
        number(line.setup_time),
        number(line.compile_time),
        number(line.cpu, 0),
        number(line.rss / 1024**3 if line.rss else None, 2),
        number(line.gpu, 0),
    ]
