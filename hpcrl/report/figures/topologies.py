"""Figures of a learner and actors: what each role does, and wall time against the latency of a step, beside a model."""

from __future__ import annotations

import json
from itertools import takewhile
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from hpcrl.report.design import GREY, PHASES, colours, counted, display
from hpcrl.report.figures.drawing import (
    HEIGHT,
    Figure,
    Key,
    Panel,
    axis_title,
    colour,
    legend,
    ordered,
    rounded,
    scale_of,
)
from hpcrl.report.figures.marks import in_words, stacked
from hpcrl.report.statistics import geometric_mean
from hpcrl.report.topologies import (
    ACTORS,
    SEQUENTIAL,
    EqualWork,
    Role,
    at_equal_work,
    message_time,
    parts_of,
    roles,
    with_topology,
)

_MEASURED = ["panel", "what", "x", "time", "seed", "colour"]
_MODELLED = ["panel", "what", "x", "time", "simulating", "learning", "evaluating", "messages", "colour"]
_X = "latency of a step (ms)"
_Y = "training with evaluations (s)"
_MODEL = (
    "Lines are the model max(T_sim / actors, T_learn) + T_eval + messages, of measured parts only. T_sim (environment and acting), T_learn (replay, transfers and updates) "
    "and T_eval (evaluations) are those of the sequential runs at the same latency. Messages are what the topology's own runs spent on packing, sending and receiving, without "
    "waiting: the learner's seconds and the mean of the actors'. All are means over seeds. Not in the model: other work of the loops, waiting for an interval's last "
    "block or updates, exploring while the learner evaluates, and cores that ranks share."
)


def figures(some: pd.DataFrame, rows: pd.DataFrame, phases: pd.DataFrame) -> list[Figure | None]:
    """Draw what a study has: nothing without actors, and the figure of latencies if there are several.

    Args:
        some: the attempts whose configurations are drawn as lines. rows: all attempts, with the columns of `with_groups`. phases: the table ``phases``.
    """
    return [_shares(roles(some, phases)), _latencies(rows, phases)]


def _shares(found: list[Role]) -> Figure | None:
    found = [role for role in found if role.shares]
    if not found:
        return None
    names = _lines(found)
    long = pd.DataFrame(
        [
            {
                "line": names[role.cluster, role.what, role.where],
                "role": ACTORS if role.role == ACTORS else "learner, or one process",
                "part": phase,
                "value": share,
            }
            for role in found
            for phase, share in role.shares.items()
        ]
    )
    used = {phase: look for phase, look in PHASES.items() if (long.loc[long["part"] == phase, "value"] > 0).any()}
    panels = []
    for role in ("learner, or one process", ACTORS):
        part = long[(long["role"] == role) & long["part"].isin(used)]
        panel = stacked(part, used, "share of time (%)", ordered(part["line"]), share=True)
        panels.append(Panel(panel.chart, panel.values, role, panel.rows))
    text = (
        "Of the time of training with its evaluations, all seeds of completed cells together. Waiting is idle; everything else is work. Of actors, the mean of all. "
        "A latency of the environment is a part of its steps."
    )
    keys = tuple(Key(name, colour=hue) for name, hue in used.values())
    return Figure("learner-and-actors", "Utilisation of learner and actors", text, tuple(panels), keys)


def _lines(found: list[Role]) -> dict[tuple[str, str, str], str]:
    """Name each configuration: without the words that all names begin with, and with the place if it tells two apart."""
    keys = dict.fromkeys((role.cluster, role.what, role.where) for role in found)
    columns = zip(*(what.split() for _, what, _ in keys), strict=False)
    alike = len(list(takewhile(lambda words: len(set(words)) == 1, columns))) if len(keys) > 1 else 0
    short = {key: " ".join(key[1].split()[alike:]) or key[1] for key in keys}
    several = len(set(short.values())) < len(keys)
    return {key: f"{name} · {key[2]} · {key[0]}" if several else name for key, name in short.items()}


def _latencies(rows: pd.DataFrame, phases: pd.DataFrame) -> Figure | None:
    """Draw wall time against latency, with a panel for each topology and whatever else differs."""
    measured, model = _compared(rows, phases)
    if measured.empty or measured.groupby("panel")["x"].nunique().max() < 2:
        return None
    everything = pd.concat([measured["time"], model["time"]])
    scale, is_log = scale_of(everything)
    title = axis_title(_Y, is_log)
    y = alt.Y("time:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6))
    x = alt.X("x:Q", title=_X, scale=alt.Scale(zero=False, nice=False, padding=16), axis=alt.Axis(tickCount=6))
    panels = []
    for name, part in measured.groupby("panel", sort=False):
        lines = model[model["panel"] == name]
        middles = _middles(part, lines)
        hue = colour(part)
        tips = [alt.Tooltip("what", title="runs"), alt.Tooltip("x", title=_X)]
        base = alt.Chart(rounded(middles.drop(columns="hex"))).encode(x=x, color=hue)
        numbers = [alt.Tooltip(column, format=",.4~r") for column in ("time", "low", "high", "model")]
        predicted = alt.Chart(rounded(lines.drop(columns="hex"))).mark_line(strokeWidth=1.5).encode(
            x=x, y=y, color=hue, detail="what:N", tooltip=[*tips, alt.Tooltip("time", title="model", format=",.4~r")]
        )  # fmt: skip
        dots = alt.Chart(rounded(part[["what", "x", "seed", "time", "colour"]])).mark_circle(size=26, opacity=0.7)
        layers: list[Any] = [
            predicted,
            base.mark_rule(strokeWidth=5, opacity=0.35).encode(y=alt.Y("low:Q", title=title, scale=scale), y2="high:Q"),
            dots.encode(x=x, y=y, color=hue, tooltip=[*tips, "seed", alt.Tooltip("time", format=",.4~r")]),
            base.mark_tick(thickness=3, size=14, orient="horizontal").encode(y=y, tooltip=[*tips, *numbers, "seeds"]),
        ]
        panels.append(Panel(alt.layer(*layers).properties(height=HEIGHT), _table(middles), str(name)))
    text = f"{in_words(measured.assign(line=measured['what'] + measured['x'].astype(str)), 'time', 'geometric mean')} {_MODEL}"
    return Figure(
        "wall-time-by-latency", "Wall time against the latency of a step", text, tuple(panels), legend(measured)
    )


def _compared(rows: pd.DataFrame, phases: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a row for each run, and one of the model for each topology, number of actors and latency.

    Both have `panel`, `what`, `x` (ms), `time` (s), `colour` and `hex`. Every panel has the sequential runs. The runs have `seed`, and the model has
    its parts: `simulating`, `learning`, `evaluating` and `messages`.
    """
    compared = list(at_equal_work(with_topology(rows)))
    names = names_of(compared)
    frames: list[pd.DataFrame] = []
    models: list[dict[str, Any]] = []
    for work in compared:
        parts = parts_of(work.alone, phases)
        for topology, runs in work.others.groupby("topology", sort=True):
            whose = [counted(int(number), "actor") for number in runs["actors"]]
            named = runs.assign(what=[f"{topology}, {name}" for name in whose], colour=whose)
            panel = ", ".join(filter(None, [str(topology), names[work.cluster, work.rest]]))
            x = 1e3 * work.latency
            alone = work.alone.assign(what=SEQUENTIAL, colour=SEQUENTIAL)
            frames.append(pd.concat([alone, named]).assign(panel=panel, x=x)[_MEASURED])
            for _, some in named.groupby("actors", sort=True):
                first, messages = some.iloc[0], message_time(some, phases)
                if parts is None or messages is None:
                    continue
                actors = int(first["actors"])
                models.append(
                    {"panel": panel, "x": x, "what": first["what"], "colour": first["colour"], "time": parts.model(actors, messages), "simulating": parts.simulating / actors,
                     "learning": parts.learning, "evaluating": parts.evaluating, "messages": messages}
                )  # fmt: skip
    measured = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=_MEASURED)
    return _coloured(measured), _coloured(pd.DataFrame(models, columns=_MODELLED))


def names_of(compared: list[EqualWork]) -> dict[tuple[str, str], str]:
    """Name what else differs, by cluster and `rest`; nothing if there is one of each."""
    keys = sorted({(work.cluster, work.rest) for work in compared})
    configs = [json.loads(rest) for _, rest in keys]
    names = dict.fromkeys(name for config in configs for name in config)
    differ = [name for name in names if len({str(config.get(name)) for config in configs}) > 1]
    clusters = len({cluster for cluster, _ in keys}) > 1
    return {
        key: ", ".join([*([key[0]] if clusters else []), *(_named(name, config.get(name)) for name in differ)])
        for key, config in zip(keys, configs, strict=True)
    }


def _named(setting: str, value: object) -> str:
    return display(value) if setting in ("framework", "execution") else f"{setting} {display(value)}"


def _coloured(rows: pd.DataFrame) -> pd.DataFrame:
    hues = colours(set(rows["colour"]) - {SEQUENTIAL}) | {SEQUENTIAL: GREY}
    return rows.assign(hex=rows["colour"].map(hues), dash="")


def _middles(measured: pd.DataFrame, model: pd.DataFrame) -> pd.DataFrame:
    """Return the geometric means of the runs with their intervals, and beside each the model with its parts."""
    rows = []
    for (what, x), group in measured.groupby(["what", "x"], sort=True):
        middle = geometric_mean(np.asarray(group["time"].to_numpy(float)))
        low, high = (np.nan, np.nan) if middle.low is None else (middle.low, middle.high)
        first = group.iloc[0]
        rows.append(
            {"what": what, "x": x, "time": middle.value, "low": low, "high": high, "seeds": len(group),
             "colour": first["colour"], "hex": first["hex"]}
        )  # fmt: skip
    known = model.rename(columns={"time": "model"})[
        ["what", "x", "model", "simulating", "learning", "evaluating", "messages"]
    ]
    return pd.DataFrame(rows).merge(known, on=["what", "x"], how="left")


def _table(middles: pd.DataFrame) -> pd.DataFrame:
    columns = {
        "what": "runs", "x": _X, "time": f"{_Y}, geometric mean", "low": "from", "high": "to", "seeds": "seeds", "model": "model (s)",
        "simulating": "T_sim / actors (s)", "learning": "T_learn (s)", "evaluating": "T_eval (s)", "messages": "messages (s)",
    }  # fmt: skip
    return middles[list(columns)].rename(columns=columns)
