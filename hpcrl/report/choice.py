"""Choose the configurations of a large study that figures draw as lines, by a rule that the captions state."""

from __future__ import annotations

import pandas as pd

from hpcrl.report.design import natural
from hpcrl.report.groups import KEYS

MOST = 20
_BEST, _FASTEST = 8, 8  # of the chosen; the rest are the slowest


def line_names(rows: pd.DataFrame) -> pd.Series[str]:
    """Name the lines by their differences: with places and clusters only if there are several."""
    names = rows["what"]
    if rows["where"].nunique() > 1:
        names = names + " · " + rows["where"]
    if rows["cluster"].nunique() > 1:
        names = names + " · " + rows["cluster"]
    return names


def chosen(
    rows: pd.DataFrame, most: int = MOST, more_is_better: bool = True, trains: bool = True
) -> tuple[pd.DataFrame, str]:
    """Return the rows of the configurations to draw, with their `line`, and the rule in words ("" if all are drawn).

    Args:
        rows: attempts with the columns of `with_groups`, of one study.
    """
    rows = rows.assign(line=line_names(rows))
    total = rows.groupby(list(KEYS)).ngroups
    if total <= most:
        return rows, ""
    ordered = rows.loc[sorted(rows.index, key=lambda index: natural(rows.at[index, "line"]))]
    groups = ordered.groupby("line", sort=False)
    scores = groups["final_score"].median().dropna().sort_values(ascending=not more_is_better, kind="stable")
    done = ordered[ordered["outcome"] == "completed"]
    times = done.groupby("line", sort=False)["training_time"].median().dropna().sort_values(kind="stable")
    best = list(scores.index[: _BEST if len(times) else most])
    fastest = [name for name in times.index if name not in best][: _FASTEST if len(scores) else most // 2]
    slowest = [name for name in times.index[::-1] if name not in best + fastest][: most - len(best) - len(fastest)]
    kept = {*best, *fastest, *slowest} or set(list(groups.groups)[:most])
    verb = "train" if trains else "run"
    parts = [
        f"the {len(names)} {words}"
        for names, words in (
            (best, "with the best median scores"),
            (fastest, f"{'others ' if best else ''}that {verb} fastest"),
            (slowest, f"that {verb} slowest"),
        )
        if names
    ]
    rule = f"{len(kept)} of {total:,} configurations are drawn: {', '.join(parts) or 'the first by name'}. The table has all."
    return rows[rows["line"].isin(kept)], rule
