"""Compare the claims of a paper with measurements: one verdict for each claim of ``jobs/claims/PAPER.yaml``.

A claim is a list of comparisons, each of two configurations (or of one with a score). It *agrees* if every comparison is
shown at the 5 % level. It is *contradicted* if the opposite of a comparison is shown, corrected for the number of its
comparisons (Holm). A superlative or a ranking agrees only if all of its configurations were run. A claim of equality agrees
only if equality within its margin is shown (:mod:`hpcrl.report.equivalence`); no difference shown is not enough. A claim with
a number agrees *in direction* if a comparison's interval does not contain the paper's number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from hpcrl.report.claim_parts import LEVEL, Part, compared, counted, inside, same
from hpcrl.report.claim_runs import MEASURES, Runs, listed
from hpcrl.report.design import capitalised
from hpcrl.report.integrals import with_integrals, with_last_returns, with_shares, with_stepping, with_updates
from hpcrl.report.machines import not_alone
from hpcrl.report.statistics import holm
from hpcrl.spec.claim_tests import (
    Differs,
    Extreme,
    Fails,
    Measure,
    Ranking,
    Reaches,
    Same,
    Untestable,
    Within,
    selections,
)
from hpcrl.spec.claims import Claim, Claims, Configuration
from hpcrl.spec.library import Library

Word = Literal[
    "agrees", "agrees in direction", "contradicted", "no difference shown", "not shown", "cannot be tested here"
]


@dataclass(frozen=True)
class Verdict:
    """The result of one claim on one cluster, or on all together if it compares clusters.

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
    note: str
    verdict: Word
    tested: int
    comparisons: int
    measured: str
    beside: str

    @property
    def is_told(self) -> bool:
        """Whether the runs show something of the claim, or of a substitute."""
        return self.tested > 0 or bool(self.beside)

    def headline(self) -> str:
        """Return the verdict, with the number of comparisons if not all could be tested."""
        partly = 0 < self.tested < self.comparisons and self.verdict != "cannot be tested here"
        return f"{self.verdict} ({self.tested} of {self.comparisons} comparisons)" if partly else self.verdict


@dataclass(frozen=True)
class _Reading:
    """The evaluation of a claim with one choice of places and measure.

    Args:
        asked: the comparisons that could be tested.
        left: those that could not.
    """

    word: Word
    title: str
    asked: tuple[Part, ...]
    left: tuple[Part, ...]

    def text(self) -> str:
        missing = listed(dict.fromkeys(part.text for part in self.left))
        return " ".join([*self.numbers(self.asked), *([f"Not tested: {missing}."] if missing else [])])

    def numbers(self, parts: Sequence[Part]) -> list[str]:
        return [f"{self.title}: {listed(part.text for part in parts)}."] if parts else []


def verdicts(
    rows: pd.DataFrame,
    episodes: pd.DataFrame,
    samples: pd.DataFrame,
    phases: pd.DataFrame,
    name: str,
    study: dict[str, Any],
    library: Library,
) -> list[Verdict]:
    """Judge the claims of a study's paper. Return none if there is no file of its claims.

    Args:
        rows: attempts with the columns of `with_groups`, and `shared`; the other tables are the dataset's.
        name: name of the study.
        study: its entry in ``dataset.json``.

    Raises:
        SpecError: the file of claims has faults.
    """
    claims = library.claims_of(str(study.get("paper") or ""))
    if not claims:
        return []
    measured = with_shares(with_integrals(rows, episodes, samples))
    measured = with_stepping(with_updates(with_last_returns(measured, episodes), phases), phases)
    return judge(claims, measured, name, study.get("goal"))


def judge(claims: Claims, rows: pd.DataFrame, study: str, goal: float | None) -> list[Verdict]:
    """Judge each claim of a paper on each cluster.

    Args:
        rows: attempts of one study with the columns of `with_groups`, `with_integrals`, `with_shares`, `with_last_returns`,
            `with_updates` and `with_stepping`, and `shared`.
        goal: the study's goal; evaluations that reach it are recorded as such.
    """
    judged = []
    busy = not_alone(rows)
    parts = [(str(cluster), part, False) for cluster, part in rows.groupby("cluster", sort=True)]
    parts.append((", ".join(cluster for cluster, _, _ in parts), rows, True))
    for cluster, part, whole in parts:
        runs = Runs(claims, part, busy.loc[part.index], claims.places, claims.clusters)
        for claim in claims.claims:
            if claim.compares_clusters != whole:
                continue
            read = _reading(claim, runs, goal)
            said = (claim.id, claim.text, claim.quote or "", claim.where, claim.note or "")
            numbers = (len(read.asked), len(read.asked) + len(read.left))
            judged.append(
                Verdict(study, cluster, *said, read.word, *numbers, read.text(), _beside(claim, runs, goal, read))
            )
    return judged


def _reading(claim: Claim, runs: Runs, goal: float | None, measure: Measure | None = None) -> _Reading:
    """Evaluate a claim.

    Args:
        measure: the measure that replaces the claim's own.
    """
    test = claim.shown_by
    if isinstance(test, Untestable):
        return _Reading("cannot be tested here", "", (), (Part(test.why),))
    if isinstance(test, Reaches | Fails):
        title = "Runs that reached the goal" if isinstance(test, Reaches) else "Runs that ended with a result"
        parts = [counted(configuration, test, runs, goal) for configuration in _configurations(test, runs)]
    else:
        chosen = measure or test.measure
        title = capitalised(MEASURES[chosen][1])
        if isinstance(test, Within):
            parts = [inside(configuration, test, chosen, runs) for configuration in _configurations(test, runs)]
        elif isinstance(test, Same):
            parts = [same(one, other, test, chosen, runs) for one, other in runs.claims.pairs(test)]
        else:
            paper = test.ratio if isinstance(test, Differs) else None
            parts = [compared(low, high, chosen, runs, test.kind, paper) for low, high in runs.claims.pairs(test)]
    asked = tuple(part for part in parts if part.p is not None)
    left = tuple(part for part in parts if part.p is None)
    word = _word(asked, bool(left) and isinstance(test, Extreme | Ranking))
    if word == "no difference shown" and isinstance(test, Same | Within):
        word = "not shown"
    return _Reading(word, title, asked, left)


def _configurations(test: Reaches | Fails | Within, runs: Runs) -> list[Configuration]:
    return runs.claims.configurations(*test.configurations)


def _word(asked: Sequence[Part], incomplete: bool) -> Word:
    tests = [part.p for part in asked if part.p is not None]
    if any(stands and not part.as_said for part, stands in zip(asked, holm(tests), strict=True)):
        return "contradicted"
    if incomplete or not asked:
        return "cannot be tested here"
    shown = all(part.as_said and p <= LEVEL for part, p in zip(asked, tests, strict=True))
    if not shown:
        return "no difference shown"
    return "agrees" if all(part.as_large for part in asked) else "agrees in direction"


def _beside(claim: Claim, runs: Runs, goal: float | None, first: _Reading) -> str:
    """Evaluate a claim again, with substitutes for places that were not run and for a measure of a busy machine."""
    test = claim.shown_by
    if isinstance(test, Untestable):
        return ""
    replaced, names = dict(runs.places), []
    for place, other in runs.claims.stand_ins.items() if claim.stand_ins else ():
        there = Runs(runs.claims, runs.rows, runs.busy, {**runs.places, place: other}, runs.clusters)
        meant = [there.of(side) for side in _meant(claim, runs) if side.place == place]
        if any(map(len, meant)) and not runs.in_place(runs.places[place]).any():
            replaced[place], rows = other, pd.concat(meant)
            names.append(f"{listed(sorted(set(rows['what' if other.settings else 'where'])))} for {place}")
    own = None
    if names and not isinstance(test, Reaches | Fails):
        own = runs.claims.stand_in_measures.get(test.measure)
    platforms = _substitutes(claim, runs)
    names += [f"{others[0]} for {platform}" for platform, others in platforms.items()]
    if claim.instead and not isinstance(test, Reaches | Fails) and (runs.busy != "").any():
        own = claim.instead
        names.append(f"{MEASURES[own][1]} for the machine's")
    read = _reading(claim, Runs(runs.claims, runs.rows, runs.busy, replaced, {**runs.clusters, **platforms}), goal, own)
    further = [part for part in read.asked if part not in first.asked]
    if not names or not further:
        return ""
    return " ".join([f"With substitutes ({'; '.join(names)}): {read.word}.", *read.numbers(further)])


def _substitutes(claim: Claim, runs: Runs) -> dict[str, tuple[str]]:
    """Return clusters of the dataset for the platforms of a claim that were not run; none if there are too few."""
    named = dict.fromkeys(name for _, selection in selections(claim.shown_by) for name in selection.cluster or ())
    missing = [name for name in named if not runs.on(name).any()]
    taken = {cluster for name in named for cluster in runs.clusters[name]}
    own = runs.rows["cluster"].astype(str).str.partition(" (")[0]
    free = sorted(set(own) - taken)
    if not claim.stand_ins or len(free) < len(missing):
        return {}
    return {name: (cluster,) for name, cluster in zip(missing, free, strict=False)}


def _meant(claim: Claim, runs: Runs) -> list[Configuration]:
    """Return the configurations that a claim compares or counts."""
    test = claim.shown_by
    if isinstance(test, Reaches | Fails | Within):
        return _configurations(test, runs)
    if isinstance(test, Untestable):
        return []
    return [configuration for pair in runs.claims.pairs(test) for configuration in pair]
