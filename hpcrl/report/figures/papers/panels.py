"""Figures of papers whose panels are quantities over training, or values of whole runs against a number of cores or GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from hpcrl.errors import count
from hpcrl.report.curves import band_in_words, left_out, returns, usage
from hpcrl.report.figures.against import against
from hpcrl.report.figures.drawing import Figure, Key, legend
from hpcrl.report.figures.marks import bands
from hpcrl.report.figures.papers.data import SEVERAL, Empty, PaperData, of_one_configuration
from hpcrl.report.machines import not_alone

_SHARED = "cells shared the machine, so its values do not belong to one cell"


@dataclass(frozen=True)
class Quantity:
    """A quantity over the course of training.

    Args:
        column: of the samples; "" for returns. by_episode: whether the other axis is the episode; otherwise it is time.
    """

    title: str
    axis: str
    column: str = ""
    by_episode: bool = False


@dataclass(frozen=True)
class Value:
    """A value of a whole run, from a column of the attempts."""

    column: str
    axis: str
    title: str


def over_training(
    name: str,
    heading: str,
    quantity: Quantity,
    rows: pd.DataFrame,
    panels: Sequence[str],
    lines: Sequence[str],
    text: str,
    data: PaperData,
    exceptions: str = "",
) -> Figure | Empty:
    """Draw a quantity over training, with a panel for each of the paper's figures.

    Args:
        rows: attempts with `what` (a line of a panel), `panel` and `configuration`.
        panels, lines: the names of all panels of the paper, and of all lines of each. text: the beginning of the caption.
        data: its `episodes` and `samples` are those in training, and count training time.
        exceptions: the runs in which this is not so.
    """
    if rows.empty:
        return heading, "not run on CPU cores"
    if quantity.column and rows["shared"].any():
        return heading, _SHARED
    ran = set(zip(rows["what"], rows["panel"], strict=True))
    rows, left = of_one_configuration(rows, ["what", "panel"])
    if rows.empty:
        return heading, SEVERAL
    rows = rows.assign(where=rows["panel"], line=rows["what"], cluster="", apart="")
    if quantity.column:
        curves = usage(rows, data.samples, quantity.column)
    else:
        curves = returns(rows, data.episodes, "episode" if quantity.by_episode else "time")
    if curves.empty:
        return heading, "no values in training were recorded"
    x = "episode" if quantity.by_episode else "training time (s)"
    drawn = bands(curves, x, quantity.axis, None if quantity.column else data.goal)
    titled = [replace(panel, title=panel.title or str(curves["where"].iloc[0])) for panel in drawn]
    missing = [f"{line} in {panel.partition(':')[0]}" for panel in panels for line in lines if (line, panel) not in ran]
    text += f" {band_in_words(curves)}{left_out(rows)}"
    if not quantity.by_episode:
        text += f" Time is that of training, without evaluations.{exceptions}"
    if quantity.column:
        text += busy(rows)
    text += f"{few_cores(rows)}{left}"
    if missing:
        text += f" Not run: {'; '.join(missing)}."
    ordered = tuple(sorted(titled, key=lambda panel: panels.index(panel.title)))
    return Figure(name, heading, text, ordered, _keys(curves))


def against_number(
    name: str,
    heading: str,
    rows: pd.DataFrame,
    values: Sequence[tuple[str, Value]],
    unit: str,
    text: str,
    exceptions: str = "",
) -> Figure | Empty:
    """Draw values of whole runs against a number.

    Args:
        rows: completed attempts with `x` (the number), `what` (a line), `configuration`, and the columns of the values.
        values: the title of each panel, and its value. unit: what is counted. text: the beginning of the caption.
        exceptions: the runs whose values are not of training alone.
    """
    if rows.empty:
        return heading, f"not run on {unit}"
    rows, left = of_one_configuration(rows, ["what", "x"])
    if rows.empty:
        return heading, SEVERAL
    shared = bool(rows["shared"].any())
    panels, lost = [], []
    for label, value in values:
        if shared and value.column.startswith("machine_"):
            lost.append(f"{value.title} ({_SHARED})")
        elif rows[value.column].isna().all():
            lost.append(f"{value.title} (no value in training was recorded: a shorter `sample_interval` may give one)")
        else:
            panels.append(against(rows, value.column, value.axis, unit, f"{label}: {value.title}"))
    if not panels:
        return heading, "; ".join(lost)
    text += (
        f" Only training counts, without evaluations; of CPU use, those times between samples that were training for 90 % or more.{exceptions} "
        "Dots are runs, lines are medians over seeds, bars are intervals of order statistics, which with few seeds go from the lowest "
        "to the highest."
    )
    text += f"{busy(rows)}{few_cores(rows)}{left}"
    if lost:
        text += f" Without {'; '.join(lost)}."
    return Figure(name, heading, text, tuple(panels), _keys(rows))


def not_run(rows: pd.DataFrame, asked: Iterable[int], lines: Sequence[str], unit: str) -> str:
    """Say which lines have no completed run for which numbers; "" if all have one.

    Args:
        rows: attempts with `x` (the number), `what` (a line) and `outcome`.
        asked: the numbers that the study has, if they are known. lines: the names of all lines.
    """
    missing: dict[str, dict[str, list[int]]] = {"Not run": {}, "Not completed": {}}
    for number in sorted({*asked, *rows["x"]}):
        runs = rows[rows["x"] == number]
        tried, done = set(runs["what"]), set(runs.loc[runs["outcome"] == "completed", "what"])
        for word, without in (("Not run", set(lines) - tried), ("Not completed", tried - done)):
            who = "" if without == set(lines) else ", ".join(line for line in lines if line in without)
            if without:
                missing[word].setdefault(who, []).append(int(number))
    told = []
    for word, groups in missing.items():
        parts = [
            f"{who + ' with ' if who else ''}{', '.join(map(str, numbers))} {unit}" for who, numbers in groups.items()
        ]
        told += [f" {word}: {'; '.join(parts)}."] if parts else []
    return "".join(told)


def busy(rows: pd.DataFrame) -> str:
    """Say in how many runs the machine's values include other programs."""
    others = int((not_alone(rows) != "").sum())
    if not others:
        return ""
    return f" Other programs ran on the machine in {others} of {count(len(rows), 'run')}: its values include them."


def few_cores(rows: pd.DataFrame) -> str:
    """Say of how many runs the machine had fewer cores than they could use."""
    small = rows[rows["crowded"]]
    if small.empty:
        return ""
    threads = " or ".join(f"{int(number):,}" for number in sorted(small["threads"].unique()))
    return f" In {len(small)} of {count(len(rows), 'run')} the machine had only {threads} of the cores: their times and CPU use are those of so few."


def _keys(data: pd.DataFrame) -> tuple[Key, ...]:
    """Return the legend, with the name of a colour that is alone."""
    alone = data[["colour", "hex"]].drop_duplicates()
    first = [Key(str(alone["colour"].iloc[0]), colour=str(alone["hex"].iloc[0]))] if len(alone) == 1 else []
    return (*first, *legend(data, lines=True))
