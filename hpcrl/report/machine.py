"""Whether a run had its machine to itself: only then are measures of the whole machine its own."""

from __future__ import annotations

import json

import pandas as pd

# Of the CPU time that the run itself used: less is the system's own and the sampler's.
_MOST_OF_OTHERS = 0.1


def not_alone(rows: pd.DataFrame) -> pd.Series[str]:
    """Return for each attempt what else ran on its machine, or an empty text.

    Two attempts of the rows that ran on one host at one time are told first, then CPU time of the machine that is not
    the attempt's own.

    Args:
        rows: attempts, with the column `threads` of `with_groups`.
    """
    found = pd.Series("", index=rows.index, dtype=object)
    own = rows["cpu_seconds"] / (rows["wall_time"] * rows["threads"] * rows["nodes"].fillna(1))
    others = rows["machine_cpu_percent"] / 100 - own
    found[others > _MOST_OF_OTHERS * own] = "other programs ran on the machine at that time"
    hosts = rows["hardware"].dropna().map(lambda text: json.loads(text).get("host")).dropna()
    timed = rows.loc[hosts.index].assign(host=hosts, end=lambda each: each["started"] + each["wall_time"])
    for _, group in timed.dropna(subset=["started", "end"]).groupby(["cluster", "host"]):
        ordered = group.sort_values("started", kind="stable")
        after_another = ordered["started"] < ordered["end"].cummax().shift()
        before_another = ordered["started"].shift(-1) < ordered["end"]
        found[ordered.index[after_another | before_another]] = "two cells ran on one machine at once"
    return found
