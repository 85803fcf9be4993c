"""Tables 1 to 3 of "Distributed Deep Q-Learning algorithm based on MPI" (2019) as one: published, run again as published, and at equal work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from hpcrl.report.comparison import NOTHING, estimate_of, number
from hpcrl.report.design import counted, display
from hpcrl.report.figures.papers.data import SEVERAL, PaperTable, of_one_kind
from hpcrl.report.figures.papers.mpi_deep_q_learning import PRINTED
from hpcrl.report.statistics import Values, geometric_mean, median, ratio
from hpcrl.report.topologies import SEQUENTIAL, with_topology

# The studies of an environment: as published, and at equal work.
STUDIES = {
    "CartPole": ("mpi-dqn-published", "mpi-dqn"),
    "LunarLander": ("mpi-dqn-published-lunar-lander", "mpi-dqn-lunar-lander"),
    "box slider": ("mpi-dqn-published-box-slider", "mpi-dqn-box-slider"),
}
_ORDER = (SEQUENTIAL, "pairwise", "collective", "asynchronous")
_MEASURED = ("time (s)", "speed-up", "score")
_TEXT = (
    "Published times are those of one run without a score. As published: the paper's episodes and its agents, which differ from topology to topology, and the time of "
    "training; the score is that of one evaluation at the end. At equal work: the same environment steps, updates and agent in every topology, and the time of training with its "
    "evaluations, in which actors go on exploring; there, too, the score is that of the last policy. Times are geometric means with 95 % intervals of t on logarithms, speed-ups are "
    "ratios to one process (Welch), scores medians over seeds. The box slider has 128 x 128 pixels as published, 64 x 64 at equal work."
)


def table(rows: pd.DataFrame) -> PaperTable | None:
    """Set the three tables side by side; None if none of their studies has a completed run.

    Args:
        rows: attempts of all studies of the paper, with the columns of `with_groups`.
    """
    own = rows[rows["study"].isin([study for studies in STUDIES.values() for study in studies])]
    done, left = of_one_kind(with_topology(own))
    done = done.assign(actors=np.where(done["topology"] == SEQUENTIAL, 1, done["actors"]))
    if done.empty:
        return None
    places = (
        done[["cluster", "framework", "execution"]].drop_duplicates().sort_values(["cluster", "framework", "execution"])
    )
    differ = [name for name in places.columns if places[name].nunique() > 1]
    lines = [line for place in places.to_dict("records") for line in _lines(done, place, differ)]
    heads = ["environment", "topology", "published: time (s)", "published: speed-up"]
    heads += [f"{form}: {name}" for form in ("as published", "at equal work") for name in _MEASURED]
    several = f" “Several”: {SEVERAL}." if any("several" in line for line in lines) else ""
    return PaperTable([*(["runs"] if differ else []), *heads], lines, _TEXT + left + several)


def _lines(done: pd.DataFrame, place: dict[Any, Any], differ: list[str]) -> Iterator[list[str]]:
    """Give the lines of the runs at one place: a cluster, a framework and its mode."""
    here = done[(done[list(place)] == pd.Series(place)).all(axis=1)]
    named = [", ".join(display(place[name]) for name in differ)] if differ else []
    for environment, studies in STUDIES.items():
        printed = PRINTED[environment]
        ran = here[here["study"].isin(studies)]
        kinds = {*printed, *zip(ran["topology"], ran["actors"], strict=True)}
        for topology, actors in sorted(kinds, key=lambda kind: (_ORDER.index(kind[0]), kind[1])):
            time = printed.get((topology, actors))
            published = [number(time), NOTHING if time is None else f"{printed[SEQUENTIAL, 1] / time:.2f}"]
            forms = [
                _measured(here[here["study"] == study], topology, actors, column)
                for study, column in zip(studies, ("training_time", "time"), strict=True)
            ]
            yield [*named, environment, _name(topology, actors), *published, *forms[0], *forms[1]]


def _name(topology: str, actors: int) -> str:
    if topology in (SEQUENTIAL, "pairwise"):
        return "one process" if topology == SEQUENTIAL else "two processes, pairwise"
    return f"{topology}, {counted(actors, 'actor')}"


def _measured(runs: pd.DataFrame, topology: str, actors: int, column: str) -> list[str]:
    """Return time, speed-up and score of the runs of a study with these actors."""
    alone, own = _times(runs, SEQUENTIAL, 1, column), _times(runs, topology, actors, column)
    if own is None:
        return [NOTHING] * 3
    if isinstance(own, str):
        return [own] * 3
    times, scores = own
    factor = ratio(alone[0], times) if isinstance(alone, tuple) else None
    return [
        estimate_of(geometric_mean(times), with_interval=True),
        NOTHING if topology == SEQUENTIAL else estimate_of(factor, with_interval=True),
        estimate_of(median(scores) if len(scores) else None, with_interval=True),
    ]


def _times(runs: pd.DataFrame, topology: str, actors: int, column: str) -> tuple[Values, Values] | str | None:
    """Return times and scores; "several" if the runs have several configurations, None if there are none."""
    own = runs[(runs["topology"] == topology) & (runs["actors"] == actors)]
    if own.empty:
        return None
    if len(own[["what", "where"]].drop_duplicates()) > 1:
        return "several"
    scores = own["final_score"].dropna().to_numpy(float)
    return np.asarray(own[column].to_numpy(float)), np.asarray(scores)
