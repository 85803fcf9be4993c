"""Tables 1 to 3 of "Distributed Deep Q-Learning algorithm based on MPI" (2019), beside speed-ups at equal work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from hpcrl.report.design import colours, counted, display
from hpcrl.report.figures.against import against
from hpcrl.report.figures.drawing import Figure, Panel, legend
from hpcrl.report.figures.papers.data import Empty, PaperData
from hpcrl.report.figures.topologies import names_of
from hpcrl.report.statistics import geometric_mean
from hpcrl.report.topologies import SEQUENTIAL, at_equal_work, parts_of, with_topology

# Seconds as printed, without repeats, by topology and actors: sequential, two processes, then MP(2) to MP(5), which are 1 to 4 actors and a learner.
PRINTED: dict[str, dict[tuple[str, int], float]] = {
    "CartPole": {
        (SEQUENTIAL, 1): 110.5,
        ("pairwise", 1): 73.38,
        ("collective", 1): 78.54,
        ("collective", 2): 80.75,
        ("collective", 3): 70.63,
        ("collective", 4): 77.5,
    },
    "LunarLander": {
        (SEQUENTIAL, 1): 432.63,
        ("pairwise", 1): 319.52,
        ("collective", 1): 369.43,
        ("collective", 2): 179.68,
        ("collective", 3): 130.31,
        ("collective", 4): 87.61,
    },
    "box slider": {(SEQUENTIAL, 1): 7780.38, ("collective", 4): 4765.37},
}
_HEADING = "Tables 1 to 3: speed-up by actors"
_CAPTION = (
    "The paper ran a fixed number of episodes, whose lengths depend on the policy, on CartPole and LunarLander with other agents for a learner and its actors than for one "
    "process and for two that send to each other. Its 4.94 with four actors is therefore no speed-up at equal work: by its own figure for two processes, simulating is 74% of the "
    "sequential time, so that four actors give at most 3.83. Its highest value of CartPole, 1.56 with three actors, is that of 450 trainings instead of 500, because the rounds of three actors do "
    "not divide 500; by trainings it is 1.41, as with one actor: learning is the longer part. On LunarLander three actors have 975 of 1,000 trainings, and the two processes a program of their own, with 2,000 episodes "
    "in its last version, three trainings for each, and another discount and batch. Runs again as published have its agents: their speed-up in time holds what their agents and episodes differ in, too, and that of an environment "
    "step does not hold the episodes' lengths. All other measured runs take the same steps and updates with the same agent. Their times are those of training with its "
    "evaluations, because actors go on exploring while the learner evaluates. A speed-up is the geometric mean of the sequential times, divided by that of the run. The "
    "model is the best possible: the sequential time, divided by the time to evaluate plus the larger one of the time to simulate per actor and the time to learn."
)


def figures(data: PaperData) -> Iterator[Figure | Empty]:
    """Draw the published speed-ups, and those of this dataset at equal work, with a panel for each latency."""
    done = with_topology(data.rows)
    configs = [json.loads(text) for text in done["config"]]
    by_episodes = np.array(["total_episodes" in config for config in configs], bool)
    repeated, measured = _repeated(done[by_episodes]), _measured(done[~by_episodes], data.phases)
    if measured.empty and repeated.empty:
        yield _HEADING, "no run with actors beside a sequential one that completed"
        return
    panels = [_panel(_published(), "Published, fixed number of episodes")]
    for where, rows in repeated.groupby("place", sort=True) if not repeated.empty else ():
        panels.append(_panel(rows, _titled("Run again as published", where)))
        per_step = rows.assign(speed_up=rows["per_step"])
        panels.append(_panel(per_step, _titled("The same runs, per environment step", where)))
    for (latency, place), rows in measured.groupby(["latency", "place"], sort=True) if not measured.empty else ():
        at = f"{float(str(latency)) * 1e3:g} ms per step" if measured["latency"].nunique() > 1 else ""
        panels.append(_panel(rows, _titled("Measured", at, place)))
    yield Figure("mpi-tables", _HEADING, _CAPTION, tuple(panels), legend(pd.concat([_published(), repeated, measured])))


def _titled(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part)


def _panel(rows: pd.DataFrame, title: str) -> Panel:
    return against(rows, "speed_up", "speed-up", "actors", title)


def _published() -> pd.DataFrame:
    rows = [
        {
            "what": f"{name}, two processes" if topology == "pairwise" else name,
            "colour": name,
            "x": actors,
            "speed_up": times[SEQUENTIAL, 1] / seconds,
            "seed": 1,
        }
        for name, times in PRINTED.items()
        for (topology, actors), seconds in times.items()
        if topology != SEQUENTIAL
    ]
    return _styled(pd.DataFrame(rows))


def _repeated(done: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each run of a fixed number of episodes: `what`, `x` (actors), `speed_up`, `per_step`, and `place`, what else differs.

    Each topology has an agent of its own, and so other episodes: `per_step` compares the times of an environment step.
    """
    rows: list[dict[str, Any]] = []
    keys = ["cluster", "framework", "execution", "machine"]
    differ = [name for name in keys if done[name].nunique() > 1]
    done = done.assign(nodes=done["nodes"].fillna(1).astype(int))
    spread = done.loc[done["topology"] != SEQUENTIAL, "nodes"].nunique() > 1
    for _, group in done.groupby(keys, sort=True):
        alone, others = group[group["topology"] == SEQUENTIAL], group[group["topology"] != SEQUENTIAL]
        if alone.empty or others.empty:
            continue
        base = geometric_mean(np.asarray(alone["training_time"].to_numpy(float))).value
        step = geometric_mean(np.asarray((alone["training_time"] / alone["steps"]).to_numpy(float))).value
        for row in others.to_dict("records"):
            on = counted(row["nodes"], "node") if spread else ""
            place = _titled(*(display(row[name]) for name in differ), on)
            facts = {"what": row["topology"], "x": row["actors"], "seed": row["seed"], "place": place}
            times = {"speed_up": base / row["training_time"], "per_step": step * row["steps"] / row["training_time"]}
            rows.append(facts | times)
    return _styled(pd.DataFrame(rows)) if rows else pd.DataFrame()


def _measured(done: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each run with actors, and the model's: `what`, `x` (actors), `speed_up`, `latency`, and `place`, what else differs.

    Times are in seconds, of training and evaluations: a sequential run explores in the first only, actors in both.
    """
    rows: list[dict[str, Any]] = []
    compared = list(at_equal_work(done))
    names = names_of(compared)
    for work in compared:
        base = geometric_mean(np.asarray(work.alone["time"].to_numpy(float))).value
        where = {"latency": work.latency, "place": names[work.cluster, work.rest]}
        for row in work.others.to_dict("records"):
            speed_up = base / row["time"]
            rows.append(
                {"what": row["topology"], "x": row["actors"], "speed_up": speed_up, "seed": row["seed"], **where}
            )
        parts = parts_of(work.alone, phases)
        if parts is not None:
            times = {actors: parts.model(actors) for actors in sorted(set(work.others["actors"]))}
            rows += [
                {"what": "model", "x": actors, "speed_up": base / time, "seed": 1, **where}
                for actors, time in times.items()
            ]
    return _styled(pd.DataFrame(rows)) if rows else pd.DataFrame()


def _styled(rows: pd.DataFrame) -> pd.DataFrame:
    hues = colours([*PRINTED, "asynchronous", "collective", "pairwise", "model"])
    own = rows["colour"] if "colour" in rows else rows["what"]
    return rows.assign(colour=own, hex=own.map(hues), dash=np.where(own == "model", "best possible", ""))
