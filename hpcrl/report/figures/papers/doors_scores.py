"""The scores of the studies on Doors: the rewards of the article's table 2, and the runs that reach the shortest-path return."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pandas as pd

from hpcrl.formats.facts import BEST_POSSIBLE
from hpcrl.report.design import colours, counted
from hpcrl.report.figures.changes import Stage
from hpcrl.report.figures.drawing import Figure, ordered
from hpcrl.report.figures.marks import dots
from hpcrl.report.figures.papers.data import PaperData, one_of_each_seed

# Table 2: the reward of training episodes per step.
PUBLISHED = {
    "PyTorch, 64 Gymnasium environments": 0.73,
    "Flax, 64 Gymnasium environments": 0.64,
    "Flax, 1,024 JAX environments": 0.71,
}
LAST_EPISODES = 2_000
ENOUGH = 0.8  # share of the seeds
_CLOSE = 1e-3  # rewards are float32
_ATTEMPT = ["plan", "cell", "attempt"]
_REWARDS = (
    f"The mean return of the last {LAST_EPISODES:,} training episodes of a run, divided by their mean length. The article has the mean of such ratios over the "
    "last 500 or 2,000 iterations in which an episode ended, and one run of each. Its JAX environment was an easier task (the goal straight above the agent, bumping "
    "rewarded, one step more), and its replay had 1,024 transitions of each environment: the last two lines have the faults, and the faults with that replay."
)


def rewards(data: PaperData, stages: Sequence[Stage]) -> Iterator[Figure]:
    """Draw the rewards of table 2 beside those of the runs of `stages`; nothing if none of these was run."""
    done = data.rows[data.rows["outcome"] == "completed"]
    configs = [json.loads(text) for text in done["config"]]
    names = [next((stage.name for stage in stages if stage.fits(config)), "") for config in configs]
    per_step = reward_per_step(data.episodes)
    rows = done[[*_ATTEMPT, "seed", "started"]].assign(line=names).join(per_step, on=_ATTEMPT)
    rows = one_of_each_seed(rows[(rows["line"] != "") & rows["reward"].notna()], ["line"])
    if rows.empty:
        return
    order = [stage.name for stage in stages]
    hues = colours(order)
    published = pd.DataFrame([{"line": name, "reward": value, "seed": 1} for name, value in PUBLISHED.items()])
    panels = tuple(
        dots(
            some.assign(colour=some["line"], hex=some["line"].map(hues)),
            "reward",
            "reward per step",
            "median",
            names=[name for name in order if name in set(some["line"])],
            panel=title,
        )
        for title, some in (("Published", published), ("Measured", rows))
    )
    yield Figure("doors-rewards", "Table 2: the rewards", _REWARDS, panels)


def reward_per_step(episodes: pd.DataFrame) -> pd.Series[float]:
    """Return the mean return of the last training episodes of each attempt, divided by their mean length in steps."""
    train = episodes[episodes["kind"] == "train"].sort_values("episode", kind="stable")
    sums = train.groupby(_ATTEMPT).tail(LAST_EPISODES).groupby(_ATTEMPT)[["value", "length"]].sum().astype(float)
    return (sums["value"] / sums["length"]).rename("reward")


def optimum(data: PaperData) -> Iterator[Figure]:
    """Draw how far the last policies are from the best possible return of their evaluations; nothing if no run knows it."""
    known = data.episodes[(data.episodes["kind"] == "value") & (data.episodes["name"] == BEST_POSSIBLE)]
    best = known.groupby(_ATTEMPT)["value"].last().rename("best")
    rows = data.rows[data.rows["workload"] != "random_policy"].join(best, on=_ATTEMPT)
    rows = rows[(rows["outcome"] == "completed") & rows["best"].notna() & rows["final_score"].notna()]
    rows = one_of_each_seed(rows, ["what"])
    if rows.empty:
        return
    rows = rows.assign(line=rows["what"], missing=rows["final_score"] - rows["best"])
    reached = (rows["missing"] >= -_CLOSE).groupby(rows["line"]).agg(["sum", "size"])
    few = reached[reached["sum"] < ENOUGH * reached["size"]]
    text = (
        "The mean return of the last policy, minus that of the shortest paths from the same starts, which is the largest possible one within the limit of steps "
        f"(found by value iteration). It is reached in at least 4 of 5 seeds by {len(reached) - len(few)} of {counted(len(reached), 'configuration')}."
    )
    if len(few):
        told = ", ".join(f"{line} ({row['sum']} of {row['size']})" for line, row in few.iterrows())
        text += f" Not by: {told}."
    panel = dots(rows, "missing", "return minus the best possible", "median", rule=0.0, names=ordered(rows["line"]))
    yield Figure("doors-optimum", "Runs that reach the shortest-path return", text, (panel,))
