"""Runs of a learner and actors: where the time of each role goes, and the wall time that a model predicts from measured parts.

A run with actors explores in its evaluations, too, and a sequential one does not. Times and rates here are therefore those of the training
with its evaluations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from hpcrl.formats.runs import goal_wall_time
from hpcrl.report import spreadsheet
from hpcrl.report.comparison import NOTHING, estimate_of, number
from hpcrl.report.design import PHASES, counted, natural
from hpcrl.report.groups import KEYS
from hpcrl.report.statistics import Estimate, geometric_mean
from hpcrl.telemetry.phases import BEFORE_TRAINING

ATTEMPT = ["plan", "cell", "attempt"]
SEQUENTIAL = "sequential"
_SIMULATING = ("env_step", "act")
_LEARNING = ("replay", "transfer", "update")
_MESSAGES = ("send", "receive")
_PACKING = "replay"  # of an actor: it packs each transition for its next message
_OWN = ("topology", "actors", "step_latency", "seed")
# The columns of the table, in the order of a step, its messages and an update; what is missing here is `other`.
_SHOWN = ("env_step", "act", "replay", "send", "receive", "wait", "transfer", "update", "evaluate")
ALONE, LEARNER, ACTORS = "one process", "learner", "actors"


@dataclass(frozen=True)
class EqualWork:
    """The runs on one kind of machine of a cluster that differ in topology, actors and seed alone, at one latency of a step.

    `alone` are the sequential ones, `others` those with actors. `rest` is what all have in common, as JSON: settings, cores, machine.
    """

    cluster: str
    rest: str
    latency: float
    alone: pd.DataFrame
    others: pd.DataFrame


@dataclass(frozen=True)
class Parts:
    """The parts of a sequential run that a topology takes apart, in seconds: means over seeds."""

    simulating: float
    learning: float
    evaluating: float

    def model(self, actors: int, messages: float = 0.0) -> float:
        """Return the least time of a learner and so many actors whose messages take `messages` seconds."""
        return max(self.simulating / actors, self.learning) + self.evaluating + messages


def with_topology(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the trainings that completed, with `topology`, `actors`, `latency` (s), `rest` (all other settings, the cores and GPUs of a rank, and the machine, as
    JSON) and `time` (s).

    Args:
        rows: attempts with the columns of `with_groups`.
    """
    done = rows[(rows["outcome"] == "completed") & (rows["training_time"] > 0)]
    done = done[done["workload"] != "command"]  # its axes have names and values of its own
    configs = [json.loads(text) for text in done["config"]]
    sent = [len(json.loads(text).get("transitions") or []) if isinstance(text, str) else 0 for text in done["messages"]]
    return done.assign(
        topology=[
            str(config.get("topology", "actors" if number_of else SEQUENTIAL))
            for config, number_of in zip(configs, sent, strict=True)
        ],
        actors=[int(config.get("actors", number_of or 1)) for config, number_of in zip(configs, sent, strict=True)],
        latency=[float(config.get("step_latency", 0.0)) for config in configs],
        rest=[
            _rest(config | given)
            for config, given in zip(configs, done[["cpus", "gpus", "machine"]].to_dict("records"), strict=True)
        ],
        time=done["training_time"] + done["evaluation_time"].fillna(0.0),
    )


def _uninterrupted(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs whose phases are those of the whole run: not those that went on from a checkpoint."""
    return runs[runs["resumed_step"].isna()]


def _rest(config: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in config.items() if name not in _OWN}, sort_keys=True, default=str)


def at_equal_work(done: pd.DataFrame) -> Iterator[EqualWork]:
    """Give the runs that can be compared: sequential ones, and others with actors.

    Args:
        done: the result of :func:`with_topology`.
    """
    for (cluster, rest, latency), group in done.groupby(["cluster", "rest", "latency"], sort=True):
        is_alone = group["topology"] == SEQUENTIAL
        if is_alone.any() and not is_alone.all():
            for layout, others in _layouts(group[~is_alone]):
                own = json.dumps(json.loads(str(rest)) | layout, sort_keys=True)
                yield EqualWork(str(cluster), own, float(str(latency)), group[is_alone], others)


def _layouts(others: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Give the runs with actors by their nodes and by whether ranks share cores, if the same actors ran in several such ways."""
    nodes, sharing = others["nodes"].fillna(1), others["overcommit"].fillna(value=False)
    layouts = [{"nodes": int(number), "overcommit": bool(share)} for number, share in zip(nodes, sharing, strict=True)]
    told = others.assign(layout=[json.dumps(layout) for layout in layouts])
    if told.groupby(["topology", "actors"])["layout"].nunique().max() < 2:
        yield {}, others
        return
    for text, own in told.groupby("layout", sort=True):
        yield json.loads(str(text)), own


def parts_of(alone: pd.DataFrame, phases: pd.DataFrame) -> Parts | None:
    """Return the parts of sequential runs; None if their phases are not known.

    While the learner evaluates, actors can only take the interval that is under way, or two blocks, and nothing after the last step:
    evaluations are not divided among them.

    Args:
        alone: the sequential runs of :class:`EqualWork`. phases: the table ``phases``.
    """
    alone = _uninterrupted(alone)
    own = phases.merge(alone[ATTEMPT], on=ATTEMPT)
    if own.empty:
        return None
    simulating, learning = (
        float(own.loc[own["phase"].isin(names), "seconds"].sum()) / len(alone) for names in (_SIMULATING, _LEARNING)
    )
    evaluating = float(alone["evaluation_time"].fillna(0.0).mean())
    return Parts(simulating, learning, evaluating)


def message_time(runs: pd.DataFrame, phases: pd.DataFrame) -> float | None:
    """Return the seconds that messages of runs took, without waiting: the learner's, and the mean of the actors', whose packing counts, too. Mean over runs.

    None if it is not known.
    """
    runs = _uninterrupted(runs)
    packing = (phases["phase"] == _PACKING) & (phases["rank"] > 0)
    own = phases[phases["phase"].isin(_MESSAGES) | packing].merge(runs[[*ATTEMPT, "actors"]], on=ATTEMPT)
    sides = own["seconds"].where(own["rank"] == 0, own["seconds"] / own["actors"])
    return float(sides.sum()) / len(runs) if len(own) else None


@dataclass(frozen=True)
class Role:
    """What the ranks of one role do in the runs of one configuration.

    Args:
        role: one process, learner or actors. ranks: how many of them a run has.
        shares: phase -> percent of the time of training with evaluations, of all these ranks and all seeds.
        steps, updates: of all ranks, per second; geometric means over seeds.
        goal: seconds from the first step to the end of the evaluation that reached the goal; median over the seeds that reached it.
    """

    study: str
    cluster: str
    what: str
    where: str
    role: str
    ranks: int
    runs: int
    shares: dict[str, float]
    steps: Estimate | None
    updates: Estimate | None
    goal: float | None


def roles(rows: pd.DataFrame, phases: pd.DataFrame) -> list[Role]:
    """Sum up a study's learners and actors, and its sequential runs beside them; nothing if it has no actors.

    Args:
        rows: attempts with the columns of `with_groups`. phases: the table ``phases``.
    """
    done = _uninterrupted(with_topology(rows))
    if not done["messages"].notna().any():
        return []
    done = done.assign(to_goal=goal_wall_time(done) - done["setup_time"] - done["compile_time"].fillna(0.0))
    own = phases[~phases["phase"].isin(BEFORE_TRAINING)].merge(done[[*ATTEMPT, "time"]], on=ATTEMPT)
    found = []
    for key, group in done.groupby(list(KEYS), sort=False):
        study, cluster, what, where = (str(name) for name in key)
        made = partial(Role, study, cluster, what, where, runs=len(group))
        of_group = own.merge(group[ATTEMPT], on=ATTEMPT)
        reached = group["to_goal"].dropna()
        goal = float(reached.median()) if len(reached) else None
        steps, updates = (_rate(group, column) for column in ("steps", "updates"))
        first, others = of_group[of_group["rank"] == 0], of_group[of_group["rank"] > 0]
        if group["messages"].isna().all():
            found.append(made(role=ALONE, ranks=1, shares=_shares(first), steps=steps, updates=updates, goal=goal))
            continue
        found.append(made(role=LEARNER, ranks=1, shares=_shares(first), steps=None, updates=updates, goal=goal))
        actors = int(group["actors"].max())
        found.append(made(role=ACTORS, ranks=actors, shares=_shares(others), steps=steps, updates=None, goal=None))
    return sorted(found, key=lambda role: [natural(name) for name in (role.study, role.cluster, role.what, role.where)])


def _rate(group: pd.DataFrame, column: str) -> Estimate | None:
    rates = (group[column].astype(float) / group["time"]).dropna()
    rates = rates[rates > 0]
    return geometric_mean(np.asarray(rates.to_numpy(float))) if len(rates) else None


def _shares(own: pd.DataFrame) -> dict[str, float]:
    """Return the share of each phase in percent. What has no column is `other`, and so is what is in no phase."""
    ranks = own.drop_duplicates([*ATTEMPT, "rank"])["time"].sum()
    if not ranks:
        return {}
    seconds = own.groupby("phase")["seconds"].sum()
    shares = {phase: 100 * float(seconds.get(phase, 0.0)) / float(ranks) for phase in _SHOWN}
    return shares | {"other": max(0.0, 100 - sum(shares.values()))}


def heads_of(found: list[Role]) -> list[str]:
    """Return the heads of the table on the page."""
    several = len({role.cluster for role in found}) > 1
    phases = [f"{PHASES[phase][0]} (%)" for phase in (*_SHOWN, "other")]
    places = ["cluster"] if several else []
    return [*places, "configuration", "resources", "role", *phases, "steps/s", "updates/s", "to goal (s)"]


def rows_of(found: list[Role]) -> list[list[str]]:
    """Return the rows of the table on the page."""
    several = len({role.cluster for role in found}) > 1
    return [
        [
            *([role.cluster] if several else []),
            role.what,
            role.where,
            counted(role.ranks, "actor") if role.role == ACTORS else role.role,
            *(_percent(role.shares.get(phase)) for phase in (*_SHOWN, "other")),
            estimate_of(role.steps, with_interval=True),
            estimate_of(role.updates, with_interval=True),
            number(role.goal),
        ]
        for role in found
    ]


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.1f}"


def to_csv(found: list[Role]) -> str:
    """Return the table as plain numbers."""
    return spreadsheet.to_csv(pd.DataFrame([_plain(role) for role in found]))


def _plain(role: Role) -> dict[str, object]:
    rates = (("steps", role.steps), ("updates", role.updates))
    return {
        "study": role.study,
        "cluster": role.cluster,
        "configuration": role.what,
        "resources": role.where,
        "role": role.role,
        "ranks": role.ranks,
        "runs": role.runs,
        **{f"{phase}_percent": role.shares.get(phase) for phase in (*_SHOWN, "other")},
        **{
            f"{name}_per_second{end}": getattr(rate, part) if rate else None
            for name, rate in rates
            for end, part in (("", "value"), ("_low", "low"), ("_high", "high"))
        },
        "goal_seconds_median": role.goal,
    }
