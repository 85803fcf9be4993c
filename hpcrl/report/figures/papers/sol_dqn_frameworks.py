"""The 13 figures of "Comparison of Deep-Q Network for Reinforcement Learning using Multi-stage Frameworks" (2024)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hpcrl.report.design import FRAMEWORKS, display
from hpcrl.report.figures.drawing import Figure, Panel, legend
from hpcrl.report.figures.marks import Centre, dots, in_words
from hpcrl.report.figures.papers.data import SEVERAL, Empty, PaperData, at_home, configurations, of_one_kind, with_text

_FRAMEWORKS = ("jax", "tensorflow", "mxnet")
_MODES = ("lazy", "eager")
_PLACES = ("CPU", "GPU", "Horovod")


@dataclass(frozen=True)
class _Measure:
    """A column for a paper's figures; `machine` means that it is a value of the whole machine."""

    column: str
    title: str
    centre: Centre = "median"
    machine: bool = False


_FINAL = _Measure("final_score", "final score")
_TRAINING = _Measure("training_time", "training time (s)", "geometric mean")
# The paper's utilisation is that of the whole machine; the job's own is in other figures.
_CPU = _Measure("machine_cpu_percent", "CPU utilisation of the machine (%)", machine=True)
_RAM = _Measure("machine_memory_percent", "RAM utilisation of the machine (%)", machine=True)
_GPU = _Measure("gpu_percent", "GPU utilisation (%)")


def figures(data: PaperData) -> Iterator[Figure | Empty]:
    """Draw the figures, by their numbers, from the runs of one cluster; for one without values: its title, and the reason."""
    rows, left = of_one_kind(at_home(data.rows, "sol"))
    if data.rows["cluster"].nunique() > 1:
        left += f" Only the runs on {rows['cluster'].iloc[0]} are drawn."
    yield from with_text(_figures(_tasks(rows), data.goal), left)


def _figures(tasks: pd.DataFrame, goal: float | None) -> Iterator[Figure | Empty]:
    for number, framework in enumerate(_FRAMEWORKS):
        own = tasks[tasks["framework"] == framework]
        name = display(framework)
        first = 1 + 3 * number
        yield _figure(first, f"Final score attained by {name}", (_FINAL,), own, goal)
        yield _figure(first + 1, f"Average resource utilisation by {name}", (_CPU, _RAM, _GPU), own)
        yield _figure(first + 2, f"Training times by {name}", (_TRAINING,), own)
    comparisons = (
        ("GPU utilisation", _GPU),
        ("Training times", _TRAINING),
        ("RAM utilisation", _RAM),
        ("CPU utilisation", _CPU),
    )
    for number, (title, measure) in enumerate(comparisons, start=10):
        yield _figure(number, f"{title} for all tasks and frameworks", (measure,), tasks)


def _tasks(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort cells into the paper's six tasks for each framework; a task without cells is one row without numbers.

    Its Horovod cells had two GPUs. If there are none, cells with two ranks on CPU cores replace them, with this name.
    """
    place = rows["gpus"].map(lambda gpus: "GPU" if gpus else "CPU")
    place = place.mask(rows["parallelism"] == "horovod", "Horovod")
    plain = (rows["parallelism"] == "horovod") | ((rows["tasks"] == 1) & (rows["parallelism"] == "none"))
    # The time of an incomplete training would look like a fast one.
    time = rows["training_time"].where(rows["outcome"] == "completed")
    known = rows.assign(place=place, mode=rows["execution"], training_time=time)
    if known["shared"].any():
        known = known.assign(**{_CPU.column: np.nan, _RAM.column: np.nan})
    known = known[plain & rows["framework"].isin(_FRAMEWORKS)]
    stand_in = not (known["gpus"] > 0).any()
    if not stand_in:
        known = known[(known["place"] != "Horovod") | (known["gpus"] > 0)]
    every = pd.DataFrame(
        [(framework, mode, place) for framework in _FRAMEWORKS for mode in _MODES for place in _PLACES],
        columns=["framework", "mode", "place"],
    )
    measures = [measure.column for measure in (_FINAL, _TRAINING, _CPU, _RAM, _GPU)]
    keys = ["framework", "mode", "place"]
    known = known.assign(configuration=known["what"] + ", " + known["where"])
    known = known.assign(configurations=configurations(known, keys))
    known[measures] = known[measures].where(known["configurations"] < 2)
    merged = every.merge(known[[*keys, "gpus", "seed", "configurations", *measures]], on=keys, how="left")
    names = {"Horovod": "Horovod (2 CPU ranks)"} if stand_in else {}
    merged["task"] = merged["mode"] + ", " + merged["place"].replace(names)
    merged["colour"] = merged["framework"].map(display)
    merged["hex"] = merged["framework"].map(lambda name: FRAMEWORKS[name][1])
    merged["dash"] = merged["mode"]
    merged["ran"] = merged["gpus"].notna()
    merged["beside"] = bool(rows["shared"].any())
    return merged


def _figure(
    number: int, title: str, measures: tuple[_Measure, ...], tasks: pd.DataFrame, goal: float | None = None
) -> Figure | Empty:
    several = tasks["colour"].nunique() > 1
    tasks = tasks.assign(line=tasks["colour"] + " " + tasks["task"] if several else tasks["task"])
    heading = f"Figure {number}: {title}"
    known = [measure for measure in measures if tasks[measure.column].notna().any()]
    if not known:
        return heading, _why_empty(measures, tasks)
    panels = tuple(_panel(measure, tasks, goal, len(known) > 1) for measure in known)
    text = f"Figure {number} of the paper, from the runs of this dataset. {in_words(tasks, known[0].column, known[0].centre)}"
    if goal is not None:
        text += f" The dashed line is the goal, {goal:,g}."
    if missing := list(dict.fromkeys(tasks.loc[~tasks["ran"], "line"])):
        text += f" Not run: {'; '.join(missing)}."
    if lost := [measure for measure in measures if measure not in known]:
        text += f" Without {', '.join(measure.title for measure in lost)}: {_why_empty(tuple(lost), tasks)}."
    return Figure(f"sol-{number:02}", heading, text, panels, legend(tasks) if several else ())


def _panel(measure: _Measure, tasks: pd.DataFrame, goal: float | None, titled: bool) -> Panel:
    names = list(dict.fromkeys(tasks["line"]))
    notes = {line: _note(measure, group) for line, group in tasks.groupby("line", sort=False)}
    shown = {str(line): note for line, note in notes.items() if note}
    top = max([goal or 0.0, float(np.nanmax(tasks[measure.column].to_numpy(float)))]) * 1.05 or 1.0
    return dots(
        tasks, measure.column, measure.title, measure.centre, goal, names, shown, measure.title if titled else "", [0.0, top]
    )  # fmt: skip


def _note(measure: _Measure, group: pd.DataFrame) -> str:
    """Return the text in place of a task's value; nothing if there is a value."""
    if group[measure.column].notna().any():
        return ""
    if not group["ran"].any():
        return "not run"
    if (number := group["configurations"].max()) > 1:
        return f"means {number:.0f} configurations"
    if measure.column == "gpu_percent":
        return "no GPU in it" if (group["gpus"] == 0).all() else "no value"
    return "did not end"


def _why_empty(measures: tuple[_Measure, ...], tasks: pd.DataFrame) -> str:
    ran = tasks[tasks["ran"]]
    if ran.empty:
        return "no part of it was run"
    reasons = [SEVERAL] if (ran["configurations"] > 1).any() else []
    if any(measure.machine for measure in measures) and tasks["beside"].any():
        reasons.append("cells shared the machine, so its values do not belong to one cell")
    if any(measure.column == "gpu_percent" for measure in measures) and (ran["gpus"] == 0).all():
        reasons.append("no cell with a GPU was run")
    return " and ".join(reasons) or "no value was recorded"
