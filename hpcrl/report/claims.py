"""Compare the claims of a paper with measurements: one verdict for each claim of ``jobs/claims/PAPER.yaml``.

A claim is a list of comparisons, each of two configurations (or of one with a score). It *agrees* if every comparison is
shown at the 5 % level. It is *contradicted* if the opposite of a comparison is shown, corrected for the number of its
comparisons (Holm). A superlative or a ranking agrees only if all of its configurations were run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from hpcrl.errors import count
from hpcrl.report.design import capitalised
from hpcrl.report.machines import not_alone
from hpcrl.report.statistics import CONFIDENCE, Values, holm, least_p, mann_whitney, median, ratio
from hpcrl.spec.claims import (
    Claim,
    Claims,
    Configuration,
    Extreme,
    Fails,
    Measure,
    Place,
    Ranking,
    Reaches,
    Untestable,
)
from hpcrl.spec.library import Library

Word = Literal["agrees", "contradicted", "no difference shown", "cannot be tested here"]
_LEVEL = 1 - CONFIDENCE
_MOST_TOLD = 8  # comparisons that have a sentence of their own
# measure -> column, name, whether it is a value of the whole machine
_MEASURES: dict[Measure, tuple[str, str, bool]] = {
    "training_time": ("training_time", "training time", False),
    "wall_time": ("wall_time", "wall time", False),
    "goal_time": ("goal_time", "training time to the goal", False),
    "goal_wall_time": ("goal_wall_time", "wall time to the goal", False),
    "final_score": ("final_score", "last policy's score", False),
    "cpu": ("cpu_seconds", "the job's own cores in use", False),
    "memory": ("memory", "the job's own RAM", False),
    "machine_cpu": ("machine_cpu_percent", "CPU use of the machine", True),
    "machine_memory": ("machine_memory_percent", "RAM use of the machine", True),
    "gpu": ("gpu_percent", "GPU utilisation", False),
    "gpu_memory": ("gpu_memory_peak", "GPU memory", False),
    "energy": ("energy", "energy of the GPUs", False),
}


@dataclass(frozen=True)
class Verdict:
    """The result of one claim on one cluster.

    Args:
        tested: how many of its `comparisons` could be tested.
        measured: the numbers with their intervals, and the comparisons that could not be tested, with the reason.
        beside: the result with substitutes for places that were not run or for measures that cannot be used.
    """

    study: str
    cluster: str
    claim: str
    text: str
    quote: str
    where: str
    verdict: Word
    tested: int
    comparisons: int
    measured: str
    beside: str

    def headline(self) -> str:
        """Return the verdict, with the number of comparisons if not all could be tested."""
        partly = 0 < self.tested < self.comparisons and self.verdict != "cannot be tested here"
        return f"{self.verdict} ({self.tested} of {self.comparisons} comparisons)" if partly else self.verdict


@dataclass(frozen=True)
class _Part:
    """One comparison of a claim: its test, or the reason for none.

    Args:
        p: p value of the test for no difference; None if it cannot be tested.
        as_said: whether the measurement is on the side of the claim.
    """

    text: str
    p: float | None = None
    as_said: bool = False


@dataclass(frozen=True)
class _Reading:
    """The evaluation of a claim with one choice of places and measure.

    Args:
        asked: the comparisons that could be tested.
        left: those that could not.
    """

    word: Word
    title: str
    asked: tuple[_Part, ...]
    left: tuple[_Part, ...]

    def text(self) -> str:
        missing = _list(dict.fromkeys(each.text for each in self.left))
        return " ".join([*self.numbers(self.asked), *([f"Not tested: {missing}."] if missing else [])])

    def numbers(self, parts: Sequence[_Part]) -> list[str]:
        return [f"{self.title}: {_list(each.text for each in parts)}."] if parts else []


@dataclass(frozen=True)
class _Runs:
    """The runs of a study on one cluster, by the places of a paper.

    Args:
        busy: for each run, the other work on its machine, or an empty text.
    """

    claims: Claims
    rows: pd.DataFrame
    busy: pd.Series[str]
    places: dict[str, Place]

    def name(self, configuration: Configuration) -> str:
        framework = self.claims.frameworks.get(configuration.framework, configuration.framework)
        return f"{framework} {configuration.execution} on {configuration.place}"

    def of(self, configuration: Configuration) -> pd.DataFrame:
        rows = self.rows[_in_place(self.rows, self.places[configuration.place])]
        return rows[(rows["framework"] == configuration.framework) & (rows["execution"] == configuration.execution)]


def verdicts(rows: pd.DataFrame, name: str, study: dict[str, Any], library: Library) -> list[Verdict]:
    """Judge the claims of a study's paper. Return none if there is no file of its claims.

    Args:
        name: name of the study.
        study: its entry in ``dataset.json``.

    Raises:
        SpecError: the file of claims has faults.
    """
    paper = study.get("paper")
    if paper not in library.files("jobs/claims", ".yaml"):
        return []
    return judge(library.claims(str(paper)), rows, name, study.get("goal"))


def judge(claims: Claims, rows: pd.DataFrame, study: str, goal: float | None) -> list[Verdict]:
    """Judge each claim of a paper on each cluster.

    Args:
        rows: attempts of one study with the columns of `with_groups`, and `shared`.
        goal: the study's goal; evaluations that reach it are recorded as such.
    """
    found = []
    busy = not_alone(rows)
    for cluster, part in rows.groupby("cluster", sort=True):
        runs = _Runs(claims, part, busy.loc[part.index], claims.places)
        for claim in claims.claims:
            read = _reading(claim, runs, goal)
            said = (claim.id, claim.text, claim.quote or "", claim.where)
            numbers = (len(read.asked), len(read.asked) + len(read.left))
            found.append(
                Verdict(study, str(cluster), *said, read.word, *numbers, read.text(), _beside(claim, runs, goal, read))
            )
    return found


def _reading(claim: Claim, runs: _Runs, goal: float | None, measure: Measure | None = None) -> _Reading:
    """Evaluate a claim.

    Args:
        measure: the measure that replaces the claim's own.
    """
    test = claim.shown_by
    if isinstance(test, Untestable):
        return _Reading("cannot be tested here", "", (), (_Part(test.why),))
    if isinstance(test, Reaches | Fails):
        title = "Runs that reached the goal" if isinstance(test, Reaches) else "Runs that ended with a result"
        parts = [_counted(each, test, runs, goal) for each in _configurations(test, runs)]
    else:
        chosen = measure or test.measure
        title = capitalised(_MEASURES[chosen][1])
        parts = [_compared(low, high, chosen, runs, test.kind) for low, high in runs.claims.pairs(test)]
    asked = tuple(each for each in parts if each.p is not None)
    left = tuple(each for each in parts if each.p is None)
    return _Reading(_word(asked, bool(left) and isinstance(test, Extreme | Ranking)), title, asked, left)


def _configurations(test: Reaches | Fails, runs: _Runs) -> list[Configuration]:
    return runs.claims.configurations(*test.configurations)


def _word(asked: Sequence[_Part], incomplete: bool) -> Word:
    tests = [each.p for each in asked if each.p is not None]
    if any(stands and not each.as_said for each, stands in zip(asked, holm(tests), strict=True)):
        return "contradicted"
    if incomplete or not asked:
        return "cannot be tested here"
    shown = all(each.as_said and p <= _LEVEL for each, p in zip(asked, tests, strict=True))
    return "agrees" if shown else "no difference shown"


def _beside(claim: Claim, runs: _Runs, goal: float | None, first: _Reading) -> str:
    """Evaluate a claim again, with substitutes for places that were not run and for a measure of a busy machine."""
    test = claim.shown_by
    if isinstance(test, Untestable):
        return ""
    replaced, names = dict(runs.places), []
    for place, other in runs.claims.stand_ins.items() if claim.stand_ins else ():
        rows = runs.rows[_in_place(runs.rows, other)]
        if place in _places(claim, runs) and len(rows) and not _in_place(runs.rows, runs.places[place]).any():
            replaced[place] = other
            names.append(f"{_list(sorted(set(rows['where'])))} for {place}")
    own = None
    if claim.instead and not isinstance(test, Reaches | Fails) and (runs.busy != "").any():
        own = claim.instead
        names.append(f"{_MEASURES[own][1]} for the machine's")
    read = _reading(claim, _Runs(runs.claims, runs.rows, runs.busy, replaced), goal, own)
    further = [each for each in read.asked if each not in first.asked]
    if not names or not further:
        return ""
    return " ".join([f"With substitutes ({'; '.join(names)}): {read.word}.", *read.numbers(further)])


def _places(claim: Claim, runs: _Runs) -> set[str]:
    test = claim.shown_by
    if isinstance(test, Reaches | Fails):
        return {each.place for each in _configurations(test, runs)}
    if isinstance(test, Untestable):
        return set()
    return {each.place for pair in runs.claims.pairs(test) for each in pair}


def _in_place(rows: pd.DataFrame, place: Place) -> pd.Series[bool]:
    fits = (rows["gpus"] > 0) == (place.device == "gpu")
    if place.parallelism is not None:
        fits &= rows["parallelism"].fillna("none") == place.parallelism
    for name in ("cpus", "gpus", "tasks", "nodes"):
        if (wanted := getattr(place, name)) is not None:
            fits &= rows[name].fillna(1) == wanted
    return fits


def _only(configuration: Configuration, runs: _Runs) -> pd.DataFrame | str:
    """Return the runs of a configuration, or the reason why they cannot be compared."""
    name, rows = runs.name(configuration), runs.of(configuration)
    if rows.empty:
        place = runs.places[configuration.place]
        return f"{configuration.place} was not run" if not _in_place(runs.rows, place).any() else f"{name} was not run"
    if (different := len(rows[["what", "where"]].drop_duplicates())) > 1:
        return f"{name} means {different} configurations of this study"
    return rows


def _counted(configuration: Configuration, test: Reaches | Fails, runs: _Runs, goal: float | None) -> _Part:
    """Test whether most runs reach a score, or end, by the exact one-sided binomial test against one half."""
    rows = _only(configuration, runs)
    if isinstance(rows, str):
        return _Part(rows)
    name, done = runs.name(configuration), rows["outcome"] == "completed"
    if isinstance(test, Fails):
        known, did, most_are_said = done[rows["outcome"] != "running"], done, False
    else:
        reached = rows["goal_step"].notna() if goal == test.score else rows["best_score"] >= test.score
        known, did, most_are_said = done[done | reached], reached, test.expected == "all"
    total, hits = len(known), int(did[known.index].sum())
    if not total:
        return _Part(f"{name} did not complete ({count(len(rows), 'run')})")
    p = _binomial(max(hits, total - hits), total)
    if 0.5**total > _LEVEL:
        return _Part(f"{name} has too few runs ({hits} of {total} did): the minimum is {math.ceil(-math.log2(_LEVEL))}")
    least, most = 100 * _least_share(hits, total), 100 - 100 * _least_share(total - hits, total)
    bound = f"at least {least:.0f} %" if 2 * hits >= total else f"at most {most:.0f} %"
    text = f"{name} {hits} of {total} ({bound} of all, at 95 %)"
    if left := len(rows) - total:
        text += f", and {left} did not complete"
    return _Part(text, p, (2 * hits > total) == most_are_said if 2 * hits != total else False)


def _binomial(hits: int, total: int) -> float:
    """Return P(X >= hits) for as many tosses of a fair coin."""
    return sum(math.comb(total, each) for each in range(hits, total + 1)) / 2**total


def _least_share(hits: int, total: int) -> float:
    """Return the exact one-sided lower bound of a share (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv  # late: SciPy takes a while to import

    return float(betaincinv(hits, total - hits + 1, _LEVEL)) if hits else 0.0


def _compared(low: Configuration, high: Configuration, measure: Measure, runs: _Runs, kind: str) -> _Part:
    """Compare two configurations. By the claim, the first has less of a measure.

    Args:
        kind: kind of the claim; it decides which of the two is named first.
    """
    column, _, of_machine = _MEASURES[measure]
    groups: list[Values] = []
    for configuration in (low, high):
        rows = _only(configuration, runs)
        if isinstance(rows, str):
            return _Part(rows)
        done = rows[rows["outcome"] == "completed"]
        if done.empty:
            return _Part(f"{runs.name(configuration)} did not complete ({count(len(rows), 'run')})")
        if of_machine and (others := sorted(set(runs.busy.loc[done.index]) - {""})):
            return _Part(others[0])
        values = _values(done, column)
        if not len(values):
            return _Part(f"{runs.name(configuration)} has no value of this measure")
        groups.append(values)
    names = [runs.name(low), runs.name(high)]
    if measure == "final_score" or min(each.min() for each in groups) <= 0:
        return _ranked(groups, names)
    if kind in ("more", "most"):
        factor, text = ratio(groups[1], groups[0]), f"{names[1]} has {{}} times that of {names[0]}"
    else:
        factor, text = ratio(groups[0], groups[1]), f"{names[0]} has {{}} times that of {names[1]}"
    if factor.low is None or factor.p is None:
        return _Part(f"{text.format(f'{factor.value:.3g}')}, but one run is not enough for a test")
    as_said = factor.value > 1 if kind in ("more", "most") else factor.value < 1
    return _Part(text.format(f"{factor.value:.3g} ({factor.low:.3g} to {factor.high:.3g})"), factor.p, as_said)


def _ranked(groups: list[Values], names: list[str]) -> _Part:
    """Compare scores, which may be skewed or zero: medians with their intervals, and an exact permutation test."""
    low, high = groups
    parts = []
    for name, values in zip(names, groups, strict=True):
        middle = median(values)
        spread = (
            "" if middle.low is None else f" ({middle.low:.4g} to {middle.high:.4g}, at {100 * middle.level:.0f} %)"
        )
        parts.append(f"{name} has a median of {middle.value:.4g}{spread}")
    text = " and ".join(parts)
    if least_p(len(low), len(high)) > _LEVEL:
        return _Part(f"{text}, but there are too few runs to show a difference")
    p = mann_whitney(low, high)
    above = (high[:, None] > low[None, :]).mean() - (high[:, None] < low[None, :]).mean()
    return _Part(f"{text}, p = {p:.2g}", p, bool(above > 0))


def _values(rows: pd.DataFrame, column: str) -> Values:
    if column == "goal_wall_time":
        from hpcrl.formats.runs import goal_wall_time

        values = goal_wall_time(rows)
    elif column == "cpu_seconds":
        values = rows[column] / rows["wall_time"]
    else:
        values = rows[column]
    return np.asarray(values.dropna().to_numpy(float))


def _list(texts: Iterable[str]) -> str:
    told = list(texts)
    more = len(told) - _MOST_TOLD
    return "; ".join(told[:_MOST_TOLD]) + (f"; and {more} more" if more > 0 else "")
