"""Figure 11 and table 2 of "Speeding up Training of Model-Free RL" (rlbyexample.net, 2025): the times of stepping and of DQN.

The rewards of table 2 are in :mod:`hpcrl.report.figures.papers.doors_scores`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from hpcrl.report.design import colours, in_short
from hpcrl.report.figures.against import against
from hpcrl.report.figures.changes import Stage, changed
from hpcrl.report.figures.drawing import Figure, Panel, legend
from hpcrl.report.figures.papers.data import Empty, PaperData, of_one_kind
from hpcrl.report.figures.papers.doors_scores import optimum, rewards
from hpcrl.report.integrals import with_stepping
from hpcrl.report.statistics import median

PUBLISHED_STEPS = 512
_SYNC, _PIPES, _SHARED, _ARRAYS, _COMPILED, _WHOLE = (
    "one after another", "processes, pipes", "processes, shared memory", "NumPy arrays", "JAX, stepped from Python", "JAX, whole loop",
)  # fmt: skip
_EACH_PIPES, _EACH_SHARED = "a process each, pipes", "a process each, shared memory"
# The way of stepping, and whether each environment has a process of its own.
_WAYS = {
    ("sync", False): _SYNC,
    ("pipes", False): _PIPES,
    ("processes", False): _SHARED,
    ("pipes", True): _EACH_PIPES,
    ("processes", True): _EACH_SHARED,
    ("arrays", False): _ARRAYS,
    ("compiled", False): _COMPILED,
}
_EMPTY = f"{_WHOLE} (an empty program)"
_EIGHTH = "#000000"  # of the colours of Okabe and Ito
# Seconds of 512 steps as published, by the number of environments.
PUBLISHED: dict[str, dict[int, float]] = {
    _SYNC: {1: 0.009, 101: 0.580, 201: 1.135, 301: 1.709, 401: 2.303, 481: 2.758},
    _EACH_SHARED: {1: 0.033, 101: 0.813, 201: 1.829, 301: 3.064, 401: 4.298, 481: 5.453},
    _COMPILED: {1: 1.578, 101: 1.591, 201: 1.538, 301: 1.542, 401: 1.480, 481: 1.541},
    _EMPTY: {1: 0.088, 101: 0.070, 201: 0.070, 301: 0.071, 401: 0.070, 481: 0.0706},
}
_ON_GPU = ", GPU"
_HEADING = "Figure 11: time to step all environments"
_CAPTION = (
    "Each environment takes a step with a random action. In the post each environment had a process of its own; here there are also processes with a "
    "share of the environments, as many as cores. "
    "The post's whole loop, 0.07 s for 512 steps whatever the number of environments, is no time of stepping: its compiled function returned "
    "nothing, so that the compiler removed the loop, and what was timed is tracing and compiling. Measured here are only the steps, with all their results "
    "returned and waited for: compiling and drawing the actions are phases of their own. "
)


_TORCH, _FLAX = {"framework": "torch", "execution": "eager"}, {"framework": "jax", "execution": "lazy"}
_PLAIN = {"tracking": None, "same_column": None}
_ROW_1 = {"stepping": "sync", "environments": 64, "updates": 1}
_ROW_5 = {"stepping": "compiled", "environments": 1024, "same_column": None}
_LOGGED: dict[str, tuple[str, str]] = {
    "mlflow-inline": ("requests in the loop", ""),
    "mlflow": ("sent from a process beside it", "values are sent from a process beside the training"),
    "": ("not logged", "no values are sent"),
}


def _logged(settings: dict[str, Any]) -> tuple[Stage, ...]:
    """Return a configuration with its values sent to MLflow in the loop, beside it, and not at all."""
    return tuple(Stage(name, change, {**settings, "tracking": how or None}) for how, (name, change) in _LOGGED.items())


_TABLE_2 = (
    Stage("PyTorch, 64 Gymnasium environments", "", {**_TORCH, **_ROW_1, **_PLAIN}),
    Stage("Flax, 64 Gymnasium environments", "Flax instead of PyTorch", {**_FLAX, **_ROW_1, **_PLAIN}),
    Stage("Flax, 64 JAX environments", "the environment in JAX", {**_FLAX, **_ROW_1, **_PLAIN, "stepping": "compiled"}),
    Stage(
        "Flax, 1,024 JAX environments, as many updates",
        "1,024 environments: a 16th of the iterations",
        {**_FLAX, **_ROW_5, **_PLAIN, "updates": 20},
    ),
    Stage("Flax, 1,024 JAX environments", "0.4 of the updates", {**_FLAX, **_ROW_5, **_PLAIN, "updates": 8}),
)
# The other way from the first row to the third, through the cell of framework and environment that the article does not have.
_OTHER_WAY = (
    _TABLE_2[0],
    Stage("PyTorch, 64 JAX environments", "the environment in JAX", {**_TABLE_2[0].settings, "stepping": "compiled"}),
    replace(_TABLE_2[2], change="Flax instead of PyTorch"),
)
_LOGGED_TABLE_2 = (
    Stage("PyTorch, 64 Gymnasium environments, logged", "", {**_TABLE_2[0].settings, "tracking": "mlflow-inline"}),
    replace(_TABLE_2[0], change="no logging"),
    *_TABLE_2[1:],
    Stage("Flax, 1,024 JAX environments, logged", "logging", {**_TABLE_2[-1].settings, "tracking": "mlflow-inline"}),
)
# Last column of table 2 with the faults of the article's environment, and with its replay, too.
_FAULTY = {**_TABLE_2[-1].settings, "same_column": True, "extra_step": True, "reward_bumping": True}
_VARIANTS = (
    Stage("Flax, 1,024 faulty JAX environments", "", {**_FAULTY, "buffer_size": None}),
    Stage("Flax, 1,024 faulty JAX environments, the article's replay", "", {**_FAULTY, "buffer_size": 1024**2}),
)
# File name, heading and stages of each chain of changes.
_CHAINS: tuple[tuple[str, str, tuple[Stage, ...]], ...] = (
    ("doors-table-2", "Table 2: what makes the training times", _TABLE_2),
    (
        "doors-table-2-other-way",
        "Framework and environment the other way round: the environment first, through the cell that table 2 does not have",
        _OTHER_WAY,
    ),
    ("doors-table-2-logged", "Table 2 with logging in the loop: what makes the training times", _LOGGED_TABLE_2),
    ("doors-logging-torch", "What logging costs: PyTorch, 64 Gymnasium environments", _logged({**_TORCH, **_ROW_1})),
    (
        "doors-logging-flax",
        "What logging costs: Flax, 1,024 JAX environments",
        _logged({**_FLAX, **_ROW_5, "updates": 8}),
    ),
)
_ONE_AT_A_TIME = (
    "Each stage changes one thing of the stage before. Geometric means over seeds; an effect is the ratio of two, its bar the 95 % interval "
    "(Welch's t on logarithms). Compiling is not in these times."
)
_TIMES = (
    "The post's times are 22.5 min (PyTorch, 64 Gymnasium environments), 22.8 min (Flax, the same) and 2.3 min (Flax, 1,024 environments in JAX), of one "
    "run each on one GPU, with two requests to MLflow in each of the 7,812 or 488 iterations. Here logging in the loop sends two requests for each iteration in "
    "which an episode ended, and one for each evaluation."
)


def figures(data: PaperData) -> Iterator[Figure | Empty]:
    """Draw the published times beside those of this dataset, and table 2 as the changes that it consists of."""
    yield _stepping(data)
    yield from _training(data.rows)
    yield from rewards(data, (*_TABLE_2, *_VARIANTS))
    yield from optimum(data)


def _stepping(data: PaperData) -> Figure | Empty:
    stepped = (data.rows["outcome"] == "completed") & (data.rows["workload"] == "random_policy")
    rows, left = of_one_kind(data.rows[stepped])
    published = _published()
    panels, drawn, corrected = [_panel(published, "Published")], [published], []
    for cluster, own in rows.groupby("cluster", sort=True):
        measured = _measured(own, data.phases)
        if measured.empty:
            continue
        drawn.append(measured)
        place = f", {cluster}" if rows["cluster"].nunique() > 1 else ""
        panels.append(_panel(measured, f"Measured{place}"))
        of_one = measured.assign(value=1e3 * measured["value"] / measured["x"])
        panels.append(_panel(of_one, f"Measured, per environment{place}", "µs"))
        corrected.append(_corrected(measured, f" ({cluster})" if place else ""))
    if len(drawn) == 1:
        return _HEADING, "no run that only stepped environments"
    text = f"{_CAPTION}{' '.join(filter(None, corrected))}{left}"
    return Figure("doors-11", _HEADING, text, tuple(panels), legend(pd.concat(drawn)))


def _training(rows: pd.DataFrame) -> Iterator[Figure | Empty]:
    drawn = False
    places = list(rows.groupby(["cluster", "where"], sort=True))
    for name, heading, stages in _CHAINS:
        for number, ((cluster, where), here) in enumerate(places, 1):
            if change := changed(here, stages, "training_time", "training time (s)"):
                drawn = True
                place = "" if len(places) == 1 else f" · {cluster}, {where}"
                own = name if len(places) == 1 else f"{name}-{number}"
                yield Figure(own, heading + place, f"{change.words} {_ONE_AT_A_TIME} {_TIMES}", change.panels)
    if not drawn:
        yield _CHAINS[0][1], "not all of its rows were run on one machine"


def _panel(rows: pd.DataFrame, title: str, unit: str = "ms") -> Panel:
    return against(rows, "value", f"time of a step ({unit})", "environments", title, logarithmic=True)


def _corrected(measured: pd.DataFrame, place: str) -> str:
    """Say what the whole loop takes at the largest number of environments of the post that was run."""
    own = measured[(measured["what"] == _WHOLE) & (measured["x"] <= max(PUBLISHED[_EMPTY]))]
    if own.empty:
        return ""
    count = int(own["x"].max())
    seconds = PUBLISHED_STEPS * median(own.loc[own["x"] == count, "value"].to_numpy(float) / 1e3).value
    return (
        f"The whole loop takes {in_short(seconds)} s here{place} for {PUBLISHED_STEPS} steps of {count} environments."
    )


def _published() -> pd.DataFrame:
    return _styled(
        [
            {"what": way, "x": count, "value": 1e3 * seconds / PUBLISHED_STEPS, "seed": 1}
            for way, times in PUBLISHED.items()
            for count, seconds in times.items()
        ]
    )


def _measured(rows: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each run: `what` (the way of stepping), `x` (environments), `value` (ms of a step of all of them).

    Args:
        rows: completed runs that only step, on one kind of machine.
    """
    records: list[dict[str, Any]] = []
    for row in with_stepping(rows, phases).to_dict("records"):
        config = json.loads(row["config"])
        each = config.get("workers") == "environments"
        way = _WHOLE if row["execution"] == "fused" else _WAYS[config.get("stepping", "sync"), each]
        count = int(config.get("environments", 1))
        if (seconds := row["stepping_time"]) > 0:
            place = f"{way}{_ON_GPU}" if row["gpus"] else way
            records.append(
                {"what": place, "x": count, "value": 1e3 * seconds * count / row["steps"], "seed": row["seed"]}
            )
    return _styled(records)


def _styled(found: list[dict[str, Any]]) -> pd.DataFrame:
    """Give the rows the colours of their ways; those on a GPU are dashed."""
    rows = pd.DataFrame(found, columns=["what", "x", "value", "seed"])
    way = rows["what"].str.removesuffix(_ON_GPU).replace({_EMPTY: _WHOLE})
    hues = colours({*_WAYS.values(), _WHOLE} - {_EACH_PIPES}) | {_EACH_PIPES: _EIGHTH}
    dashed = rows["what"].str.endswith(_ON_GPU)
    return rows.assign(colour=rows["what"], hex=way.map(hues), dash=dashed.map({True: "on a GPU", False: ""}))
