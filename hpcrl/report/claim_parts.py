"""The comparisons that claims are made of, each with its test."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hpcrl.errors import count
from hpcrl.formats.outcomes import NOT_BY_ITSELF
from hpcrl.report.claim_runs import MEASURES, OF_ANY_CORES, Runs, values_of
from hpcrl.report.equivalence import LEVEL as EQUAL
from hpcrl.report.equivalence import Position, mean_within, median_within, same_ratio
from hpcrl.report.statistics import CONFIDENCE, Values, least_p, mann_whitney, median, ratio, runs_needed
from hpcrl.spec.claim_tests import SCORES, Fails, Measure, Reaches, Same, Within
from hpcrl.spec.claims import Configuration

LEVEL = 1 - CONFIDENCE


@dataclass(frozen=True)
class Part:
    """One comparison of a claim: its test, or the reason for none.

    Args:
        p: p value of the test that shows the side of the claim on which the measurement is; None if it cannot be tested.
        as_said: whether the measurement is on the side of the claim.
        as_large: whether the interval contains the paper's number.
    """

    text: str
    p: float | None = None
    as_said: bool = False
    as_large: bool = True


def counted(configuration: Configuration, test: Reaches | Fails, runs: Runs, goal: float | None) -> Part:
    """Test whether most runs reach a score, or end, by the exact one-sided binomial test against one half."""
    rows = runs.only(configuration)
    if isinstance(rows, str):
        return Part(rows)
    name, done = runs.name(configuration), rows["outcome"] == "completed"
    if isinstance(test, Fails):
        known, did, most_are_said = done[~rows["outcome"].isin(NOT_BY_ITSELF)], done, False
    else:
        reached = rows["goal_step"].notna() if goal == test.score else rows["best_score"] >= test.score
        known, did, most_are_said = done[done | reached], reached, test.expected == "all"
    total, hits = len(known), int(did[known.index].sum())
    without = "did not end by itself" if isinstance(test, Fails) else "did not complete"
    if not total:
        return Part(f"{name} {without} ({count(len(rows), 'run')})")
    p = _binomial(max(hits, total - hits), total)
    if 0.5**total > LEVEL:
        return Part(f"{name} has too few runs ({hits} of {total} did): the minimum is {math.ceil(-math.log2(LEVEL))}")
    least, most = 100 * _least_share(hits, total), 100 - 100 * _least_share(total - hits, total)
    bound = f"at least {least:.0f} %" if 2 * hits >= total else f"at most {most:.0f} %"
    text = f"{name} {hits} of {total} ({bound} of all, at 95 %)"
    if left := len(rows) - total:
        text += f", and {left} {without}"
    return Part(text, p, (2 * hits > total) == most_are_said if 2 * hits != total else False)


def _binomial(hits: int, total: int) -> float:
    """Return P(X >= hits) for as many tosses of a fair coin."""
    return sum(math.comb(total, number) for number in range(hits, total + 1)) / 2**total


def _least_share(hits: int, total: int) -> float:
    """Return the exact one-sided lower bound of a share (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv  # late: SciPy takes a while to import

    return float(betaincinv(hits, total - hits + 1, LEVEL)) if hits else 0.0


def compared(
    low: Configuration, high: Configuration, measure: Measure, runs: Runs, kind: str, paper: float | None = None
) -> Part:
    """Compare two configurations. By the claim, the first has less of a measure.

    Args:
        kind: kind of the claim; it decides which of the two is named first.
        paper: the paper's ratio, which is shown beside ours.
    """
    groups = [_measured(configuration, measure, runs) for configuration in (low, high)]
    if missing := next((group for group in groups if isinstance(group, str)), None):
        return Part(missing)
    under, over = (group for group in groups if not isinstance(group, str))
    names = [runs.name(low), runs.name(high)]
    if apart := runs.apart(low, high, measure):
        return Part(apart)
    if measure in SCORES or min(under.min(), over.min()) <= 0:
        part = _ranked([under, over], names)
        if paper is None:
            return part
        return replace(
            part, text=f"{part.text}; 0 has no ratio to compare with the paper's {paper:.3g}", as_large=False
        )
    if kind in ("more", "most"):
        factor, text = ratio(over, under), f"{names[1]} has {{}} times that of {names[0]}"
    else:
        factor, text = ratio(under, over), f"{names[0]} has {{}} times that of {names[1]}"
    text += _partly(low, high, measure, runs)
    if factor.low is None or factor.p is None:
        return Part(f"{text.format(f'{factor.value:.3g}')}, but one run is not enough for a test")
    as_said = factor.value > 1 if kind in ("more", "most") else factor.value < 1
    text = text.format(f"{factor.value:.3g} ({factor.low:.3g} to {factor.high:.3g})")
    if paper is None or factor.high is None:
        return Part(text, factor.p, as_said)
    as_large = factor.low <= paper <= factor.high
    text += f"; the paper's {paper:.3g} is {'inside' if as_large else 'outside'} our interval"
    return Part(text, factor.p, as_said, as_large)


def same(one: Configuration, other: Configuration, test: Same, measure: Measure, runs: Runs) -> Part:
    """Test whether two configurations differ by no more than the claim's margin."""
    groups = [_measured(configuration, measure, runs) for configuration in (one, other)]
    names = [runs.name(one), runs.name(other)]
    if missing := next((group for group in groups if isinstance(group, str)), None):
        return Part(missing)
    first, second = (group for group in groups if not isinstance(group, str))
    if apart := runs.apart(one, other, measure):
        return Part(apart)
    if min(first.min(), second.min()) <= 0:
        return Part(f"{names[0]} or {names[1]} has a value that is not positive")
    if min(len(first), len(second)) < 2:
        return Part(f"{names[0]} or {names[1]} has one run, which is not enough for a test")
    position = same_ratio(first, second, 1 + test.within / 100)
    text = f"{names[0]} has {_spread(position)} times that of {names[1]}{_partly(one, other, measure, runs)}"
    return _placed(f"{text}, and a factor below {1 + test.within / 100:.4g} counts as none", position)


def inside(configuration: Configuration, test: Within, measure: Measure, runs: Runs) -> Part:
    """Test whether a measure of a configuration is in the claim's range."""
    values, name = _measured(configuration, measure, runs), runs.name(configuration)
    ends = [f"{word} {end:g}" for word, end in (("at least", test.low), ("at most", test.high)) if end is not None]
    claimed = f"; by the claim {' and '.join(ends)}"
    if isinstance(values, str):
        return Part(values)
    if measure in SCORES or values.min() <= 0:
        if 0.5 ** len(values) > LEVEL:
            least = math.ceil(-math.log2(LEVEL))
            told = f"{name} has a median of {median(values).value:.4g}"
            return Part(f"{told}, but {count(len(values), 'run')} cannot show its range: the minimum is {least}")
        position = median_within(values, test.low, test.high)
        return _placed(f"{name} has a median of {_spread(position)}{claimed}", position)
    if len(values) < 2:
        return Part(f"{name} has {values[0]:.3g}, but one run is not enough for a test")
    position = mean_within(values, test.low, test.high)
    selected = _partly(configuration, configuration, measure, runs)
    return _placed(f"{name} has {_spread(position)}{selected}{claimed}", position)


def _placed(text: str, found: Position) -> Part:
    return Part(text, min(found.inside, found.outside), found.inside <= found.outside)


def _spread(found: Position) -> str:
    return f"{found.value:.3g} ({found.low:.3g} to {found.high:.3g}, at {100 * EQUAL:.0f} %)"


def _measured(configuration: Configuration, measure: Measure, runs: Runs) -> Values | str:
    """Return the values of a configuration's completed runs, or the reason why there are none to compare."""
    column, _, of_machine = MEASURES[measure]
    rows = runs.only(configuration)
    if isinstance(rows, str):
        return rows
    done = rows[rows["outcome"] == "completed"]
    if done.empty:
        return f"{runs.name(configuration)} did not complete ({count(len(rows), 'run')})"
    if measure not in OF_ANY_CORES and done["crowded"].any():
        return (
            f"on {configuration.place}, runs had more cores to use than the machine has ({done['threads'].min():.0f})"
        )
    if of_machine and (others := sorted(set(runs.busy.loc[done.index]) - {""})):
        return others[0]
    values = values_of(done, column)
    return values if len(values) else f"{runs.name(configuration)} has no value of this measure"


def _partly(one: Configuration, other: Configuration, measure: Measure, runs: Runs) -> str:
    """Say which runs have no value, such as those that missed the goal: the others are then a selection."""
    told = []
    for configuration in dict.fromkeys((one, other)):
        done = runs.of(configuration)
        done = done[done["outcome"] == "completed"]
        if (known := len(values_of(done, MEASURES[measure][0]))) < len(done):
            told.append(f"{known} of {len(done)} runs of {runs.name(configuration)}")
    return f" (values of {' and '.join(told)} only)" if told else ""


def _ranked(groups: list[Values], names: list[str]) -> Part:
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
    if least_p(len(low), len(high)) > LEVEL:
        return Part(f"{text}, but there are too few runs to show a difference: the minimum is {runs_needed(1)} each")
    p = mann_whitney(low, high)
    above = (high[:, None] > low[None, :]).mean() - (high[:, None] < low[None, :]).mean()
    return Part(f"{text}, p = {p:.2g}", p, bool(above > 0))
