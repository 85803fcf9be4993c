"""The comparison with a baseline in sentences, for the page's first screen and for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from hpcrl.errors import count
from hpcrl.report.baseline import NOT_JUDGED, OUTCOME, REGRESSION, Change
from hpcrl.report.design import counted

MOST = 5  # changes that are named in one place


def regressions(changes: Sequence[Change]) -> list[str]:
    """Return a sentence without a full stop for each regression."""
    return [
        f"{change}" + (f": {change.why}" if change.why else "") for change in changes if change.verdict == REGRESSION
    ]


def first_sentences(changes: Sequence[Change], baseline: Path) -> list[str]:
    """Return what the first screen says about one study: its regressions, at most five, or that there is none; and where more runs fail."""
    worse = regressions(changes)
    told = [f"Regression against {baseline}: {text}." for text in worse[:MOST]]
    if (more := len(worse) - MOST) > 0:
        told.append(f"{counted(more, 'more regression')} against {baseline}.")
    if not worse:
        unjudged = sum(change.verdict == NOT_JUDGED for change in changes)
        text = none_worse(changes, baseline)
        told = [f"{text[:-1]}; {unjudged:,} cannot be judged." if unjudged and compared(changes) else text]
    failures = more_failures(changes)
    return [*told, failures] if failures else told


def none_worse(changes: Sequence[Change], baseline: Path, why: str = "") -> str:
    """Say that there is no regression among the changes.

    Args:
        why: the reason if nothing at all could be compared.
    """
    if number := compared(changes):
        return f"No regression beyond noise in {count(number, 'comparison')} with {baseline}."
    return f"Nothing could be compared with {baseline}" + (f": {why}." if why else ".")


def more_failures(changes: Sequence[Change]) -> str:
    """Name where more runs fail than before that are too few to judge, at most five; "" if none do."""
    fewer = [str(change) for change in changes if _fails_more(change)]
    if not fewer:
        return ""
    more = f"; and {len(fewer) - MOST:,} more" if len(fewer) > MOST else ""
    return f"More runs fail than before, but too few ran to judge it: {'; '.join(fewer[:MOST])}{more}."


def incomparable(changes: Sequence[Change], new: pd.DataFrame, old: pd.DataFrame, dataset: Path, baseline: Path) -> str:
    """Say why not one measure of two datasets could be compared; "" if one was, even if it cannot be judged.

    Args:
        new, old: their attempts with the columns of `with_groups`.
    """
    if any(change.verdict == REGRESSION or len(change.new) for change in changes):
        return ""
    here, there = (sorted(set(map(str, rows["study"]))) for rows in (new, old))
    if here and there and not set(here) & set(there):
        return f"they have no study in common ({dataset}: {', '.join(here)}; {baseline}: {', '.join(there)})"
    for rows, where in ((new, dataset), (old, baseline)):
        if not (rows["outcome"] == "completed").any():
            return f"{where} has no completed run"
    return "no completed run of the two has the same configuration"


def compared(changes: Sequence[Change]) -> int:
    """Return the number of changes that could be judged."""
    return sum(change.verdict != NOT_JUDGED for change in changes)


def _fails_more(change: Change) -> bool:
    """Tell whether fewer of its runs completed: not because of one that was stopped from outside, or has no run."""
    return (
        change.verdict == NOT_JUDGED and change.column == OUTCOME and len(change.new) > 0 and change.estimate.value < 0
    )


def reasons(changes: Sequence[Change]) -> str:
    """Sum up why changes cannot be judged: `7 comparisons cannot be judged: too few seeds: 5 (at least 28 are needed), too noisy: 2.`"""
    kinds: dict[str, list[Change]] = {}
    for change in changes:
        if change.verdict == NOT_JUDGED:
            kinds.setdefault(change.kind or change.why, []).append(change)
    if not kinds:
        return ""
    told = []
    for kind, some in sorted(kinds.items(), key=lambda item: -len(item[1])):
        needed = max(change.needed for change in some)
        told.append(f"{kind}: {len(some):,}" + (f" (at least {needed:,} are needed)" if needed else ""))
    return f"{count(sum(map(len, kinds.values())), 'comparison')} cannot be judged: {', '.join(told)}."
