"""Figures of times: wall time and training time, phases, start-up, break-even points, throughput."""

from __future__ import annotations

import altair as alt
import pandas as pd

from hpcrl.formats.runs import cores
from hpcrl.report.break_even import break_evens, costs
from hpcrl.report.curves import left_out, whole
from hpcrl.report.design import PHASES
from hpcrl.report.figures.drawing import (
    HEIGHT,
    Figure,
    Key,
    Panel,
    by_place,
    colour,
    legend,
    ordered,
    rounded,
    stroke,
)
from hpcrl.report.figures.marks import dots, in_words, stacked
from hpcrl.report.groups import kinds
from hpcrl.report.score import Score

_MOST_PANELS = 6  # of break-even points

# column -> name and colour, in order of time
_START = {
    "setup_time": ("set-up (import, build)", PHASES["setup"][1]),
    "compile_time": ("compile, warm up", PHASES["compile"][1]),
}


def figures(rows: pd.DataFrame, phases: pd.DataFrame, score: Score) -> list[Figure | None]:
    if not score.trains:
        return [wall(rows, trains=False), _command(rows), *_phases(rows, phases, trains=False)]
    return [
        wall(rows),
        training(rows),
        _break_even(rows),
        *_phases(rows, phases),
        _start(rows),
        _throughput(rows),
        _normalised(rows),
    ]


def wall(rows: pd.DataFrame, trains: bool = True) -> Figure | None:
    known = rows[rows["wall_time"].notna() & (rows["outcome"] == "completed")]
    parts = ": imports, compiling, training, evaluations" if trains else ""
    text = f"Time of whole runs, from the start of the record to its end{parts}. Completed cells."
    return _times(rows, known, "wall_time", "wall-time", "Wall time", "time since the record's start (s)", text)


def training(rows: pd.DataFrame) -> Figure | None:
    known = rows[rows["training_time"].notna() & (rows["outcome"] == "completed")]
    text = "Time of training alone, from the first step. Completed cells."
    return _times(rows, known, "training_time", "training-time", "Training time", "training time (s)", text)


def _command(rows: pd.DataFrame) -> Figure | None:
    known = rows[rows["training_time"].notna() & (rows["outcome"] == "completed")]
    text = "Time of the command alone, without hpcrl's own work before and after it. Completed cells."
    return _times(rows, known, "training_time", "command-time", "Time of the command", "time of the command (s)", text)


def _times(
    rows: pd.DataFrame, known: pd.DataFrame, column: str, name: str, title: str, axis: str, text: str
) -> Figure | None:
    if known.empty:
        return None
    names = ordered(rows["line"])
    done = set(known["line"])
    notes = {line: "did not complete" for line in names if line not in done}
    panel = dots(known, column, axis, "geometric mean", names=names, notes=notes)
    return Figure(name, title, f"{text} {in_words(known, column, 'geometric mean')}", (panel,), legend(known))


def _break_even(rows: pd.DataFrame) -> Figure | None:
    """Draw wall time against the number of steps for the modes of each framework whose lines cross."""
    done = rows[rows["outcome"] == "completed"]
    panels: list[Panel] = []
    drawn = []
    more = 0
    for place, part in by_place(done):
        measured = costs(part)
        crossings = break_evens(measured)
        for framework in dict.fromkeys(crossing.late.framework for crossing in crossings):
            crossed = [crossing for crossing in crossings if crossing.late.framework == framework]
            own = [cost for cost in measured if any(cost in (cross.early, cross.late) for cross in crossed)]
            if len(panels) == _MOST_PANELS:
                more += 1
                continue
            reach = max(1.5 * max(crossing.steps for crossing in crossed), max(cost.steps for cost in own))
            lines = pd.DataFrame(
                [
                    {"what": cost.what, "colour": cost.framework, "hex": cost.hex, "dash": cost.dash,
                     "steps": steps, "seconds": cost.after(steps)}
                    for cost in own for steps in (0.0, reach)
                ]
            )  # fmt: skip
            points = pd.DataFrame(
                [
                    {"what": f"{crossing.late.what} takes less time than {crossing.early.what}", "steps": crossing.steps,
                     "low": crossing.low, "high": crossing.high,
                     "seconds": crossing.late.after(crossing.steps)} for crossing in crossed
                ]
            )  # fmt: skip
            ends = pd.DataFrame([{"what": cost.what, "steps": cost.steps, "seconds": cost.wall} for cost in own])
            x = alt.X("steps:Q", title="environment steps", axis=alt.Axis(tickCount=5))
            y = alt.Y("seconds:Q", title="time since the record's start (s)", axis=alt.Axis(tickCount=5))
            tips = ["what", alt.Tooltip("steps", format=",.3~r"), alt.Tooltip("seconds", format=",.3~r")]
            line = alt.Chart(rounded(lines)).mark_line(strokeWidth=2).encode(
                x=x, y=y, color=colour(lines), detail="what:N", tooltip=tips, **stroke(lines)
            )  # fmt: skip
            ran = (
                alt.Chart(rounded(ends))
                .mark_point(size=40, color="#7F7F7F", filled=True)
                .encode(x=x, y=y, tooltip=tips)
            )
            cross = (
                alt.Chart(rounded(points))
                .mark_point(size=120, shape="diamond", color="#7F7F7F", strokeWidth=2)
                .encode(x=x, y=y, tooltip=tips)
            )
            table = pd.concat([points.assign(kind="break-even"), ends.assign(kind="as run")], ignore_index=True)
            drawn.append(lines)
            title = " · ".join(filter(None, [framework, place]))
            panels.append(Panel((line + ran + cross).properties(height=HEIGHT), table, title))
    if not panels:
        return None
    text = (
        "Wall time against the number of steps, from the mean time outside of training and its evaluations and the mean time per step with them. From a crossing "
        "(diamond) on, the mode with the longer start takes less time; a crossing is drawn if both differences are shown, and its "
        "interval is in the table. Grey dots are the actual runs, means over completed seeds. "
        "Lines beyond them are extrapolated."
    )
    if more:
        text += f" {_MOST_PANELS} of {_MOST_PANELS + more} frameworks and places are drawn, the first by name."
    modes = tuple(key for key in legend(pd.concat(drawn), lines=True) if key.dash)
    return Figure("break-even", "Break-even points of execution modes", text, tuple(panels), modes)


def _phases(rows: pd.DataFrame, phases: pd.DataFrame, trains: bool = True) -> list[Figure | None]:
    keys = ["plan", "cell", "attempt"]
    own = phases[(phases["rank"] == 0) & phases["phase"].isin(PHASES)]
    done = rows[rows["outcome"] == "completed"]
    long = own.merge(whole(done)[[*keys, "line"]], on=keys).rename(columns={"phase": "part", "seconds": "value"})
    if long.empty:
        return []
    # A phase that a seed never entered took no time.
    wide = long.pivot_table(index=["line", *keys], columns="part", values="value", fill_value=0.0)
    long = wide.reset_index().melt(id_vars=["line", *keys], var_name="part")
    used = {phase: look for phase, look in PHASES.items() if phase in set(long["part"])}
    if not trains:
        if set(used) <= {"setup", "other"}:
            return []  # there is only the command
        used["other"] = "command", used["other"][1]
    keyed = tuple(Key(name, colour=hue) for name, hue in used.values())
    names = ordered(long["line"])
    gpu = "Pending work of a GPU counts in the phase that waits for it, unless the study sets precise_phases. "
    note = f"First rank of completed cells. {gpu if trains else ''}Bars are arithmetic means over seeds, so that the parts add up.{left_out(done)}"
    seconds = stacked(long, used, "time (s)", names)
    share = stacked(long, used, "share of time (%)", names, share=True)
    return [
        Figure("phases", "Where the time goes", f"Seconds by phase. {note}", (seconds,), keyed),
        Figure("phase-share", "Share of time by phase", f"The same, of 100 %. {note}", (share,), keyed),
    ]


def _start(rows: pd.DataFrame) -> Figure | None:
    known = rows[rows["compile_time"].notna()]
    if known.empty:
        return None
    long = known.melt(id_vars=["line"], value_vars=list(_START), var_name="part")
    panel = stacked(long, _START, "time until the first step (s)", ordered(known["line"]))
    text = (
        "Time before the first training step. Every cell compiles without a shared cache. "
        "Bars are arithmetic means over seeds, so that the parts add up."
    )
    return Figure("start-up", "Start-up and compilation", text, (panel,), _keys(_START))


def _keys(parts: dict[str, tuple[str, str]]) -> tuple[Key, ...]:
    return tuple(Key(name, colour=hue) for name, hue in parts.values())


def _throughput(rows: pd.DataFrame) -> Figure | None:
    """Draw throughput against cores, if a configuration ran on several numbers of them that its machine has."""
    known = rows[(rows["training_time"] > 0) & (rows["steps"] > 0) & (rows["outcome"] == "completed")]
    known = known[~known["crowded"]]
    known = known.assign(
        resources=cores(known).where(known["gpus"] == 0, known["gpus"]),
        unit=known["gpus"].map(lambda gpus: "GPUs" if gpus else "cores"),
        rate=known["steps"] / known["training_time"],
    )
    known = known.assign(what=known["what"] + kinds(known, ["cluster", "unit"]))
    several = known.groupby(["cluster", "what", "unit"])["resources"].transform("nunique") > 1
    if known.empty or not several.any():
        return None
    keys = ["cluster", "what", "where", "colour", "hex", "dash", "apart", "unit", "parallelism", "resources"]
    middle = known[several].groupby(keys, as_index=False).agg(rate=("rate", "median"), seeds=("rate", "size"))
    panels = []
    for title, part in by_place(middle, ("apart", "cluster")):
        base = alt.Chart(rounded(part)).encode(
            x=alt.X(
                "resources:Q",
                title="cores or GPUs of the cell",
                scale=alt.Scale(type="log", base=2),
                axis=alt.Axis(format="d", values=sorted(part["resources"].unique().tolist())),
            ),
            y=alt.Y("rate:Q", title="environment steps a second", axis=alt.Axis(tickCount=6)),
            color=colour(part),
            detail=["what:N", "unit:N"],
            tooltip=["what", "where", "parallelism", "resources", "unit", alt.Tooltip("rate", format=",.0f")],
        )
        chart = base.mark_line().encode(**stroke(part)) + base.mark_circle(size=60)
        table = part.drop(columns=["cluster", "colour", "hex", "dash", "apart"])
        panels.append(Panel(chart.properties(height=HEIGHT), table, title))
    text = (
        "Steps of all ranks together, medians over seeds; points of one configuration are joined. Several ranks share one batch, so the "
        "line of a small network is flat."
    )
    return Figure("scaling", "Throughput against cores or GPUs", text, tuple(panels), legend(middle, lines=True))


def _normalised(rows: pd.DataFrame) -> Figure | None:
    """Draw throughput relative to the machine's own speed, if there are several clusters."""
    known = rows[(rows["outcome"] == "completed") & rows["steps"].notna() & (rows["training_time"] > 0)]
    known = known[known["calibration_environment"].notna()]
    if known["cluster"].nunique() < 2:
        return None
    known = known.assign(rate=known["steps"] / known["training_time"] / known["calibration_environment"])
    panel = dots(known, "rate", "environment steps per step of the calibration", "geometric mean")
    text = (
        "Environment steps a second of training, divided by the CartPole steps a second of one core of the same node in its "
        "calibration. A remaining difference between clusters does not come from the speed of their cores. "
        + in_words(known, "rate", "geometric mean")
    )
    return Figure("normalised-speed", "Speed relative to the machine's own", text, (panel,), legend(known))
