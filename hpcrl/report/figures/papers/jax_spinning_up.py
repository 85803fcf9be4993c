"""Table 4, figures 3 to 6 and the faults of the public code of "JAX 4 Deep RL" (2023): VPG and TD3 in PyTorch and JAX."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from hpcrl.report.curves import band_in_words, evaluations, returns
from hpcrl.report.design import FRAMEWORKS, GREY, display, in_short
from hpcrl.report.figures.drawing import Figure, Key, Panel, legend
from hpcrl.report.figures.marks import bands, dots, in_words, intervals
from hpcrl.report.figures.papers.data import Empty, PaperData, one_of_each_seed
from hpcrl.report.integrals import with_last_returns, with_updates
from hpcrl.report.statistics import ratio

# Table 4: mean and standard deviation of the returns of three seeds, "rounded to significant value".
RETURNS = {
    ("vpg", "jax"): (-50, 50),
    ("vpg", "torch"): (-50, 150),
    ("td3", "jax"): (5_000, 300),
    ("td3", "torch"): (6_000, 3_500),
}
# What Table 4 has of each algorithm: the column, and its name.
_SCORES = {
    "vpg": ("last_return", "return of training episodes, last tenth of the steps"),
    "td3": ("final_score", "return of the last policy"),
}
# Figure 6, and the run times behind it: JAX's time as a share of PyTorch's. Its public code cannot have given TD3's.
SHARES = {("vpg", "update"): 0.22, ("vpg", "whole run"): 0.765, ("td3", "update"): 0.54}
_ALGORITHMS = ("vpg", "td3")
_FAULTS: dict[str, dict[str, Any]] = {
    "no fault": {},
    "target noise with a mean (uniform)": {"target_noise_kind": "uniform"},
    "averaging the wrong way round": {"target_share": 0.995},
    "tanh for ReLU": {"activation": "tanh"},
    "one random key for all": {"shared_noise": True},
}
_CORRECT: dict[str, Any] = {
    "target_noise_kind": "normal", "target_share": 0.005, "activation": "relu", "shared_noise": False,
}  # fmt: skip
_TABLE_4, _CURVES, _TIMES, _CODE = (
    "Table 4: returns", "Figures 3 to 5: returns during training", "Figure 6: JAX's times as a share of PyTorch's", "Faults of the public code",
)  # fmt: skip


def figures(data: PaperData) -> Iterator[Figure | Empty]:
    """Draw what the paper shows of its best configurations, beside its numbers, and what each fault of its code costs."""
    done = data.rows[(data.rows["outcome"] == "completed") & data.rows["workload"].isin(_ALGORITHMS)]
    configs = [json.loads(text) for text in done["config"]]
    faulty = np.array(["target_noise_kind" in config for config in configs], bool)
    best = _named(done[~faulty])
    yield _returns(with_last_returns(best, data.episodes))
    yield _curves(best, data)
    yield _times(best, data.phases)
    yield _faults(done[faulty])


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of PyTorch and JAX with `line`: the framework, and what tells several configurations of it apart."""
    rows = rows[rows["framework"].isin(["torch", "jax"])]
    device = pd.Series([", GPU" if gpus else "" for gpus in rows["gpus"]], rows.index, dtype=str)
    line = pd.Series([display(name) for name in rows["framework"]], rows.index, dtype=str) + device
    several = rows.assign(line=line).groupby(["workload", "line"])["what"].transform("nunique") > 1
    return rows.assign(line=line.where(~several, rows["what"] + device), place=rows["cluster"], cluster="")


def _returns(best: pd.DataFrame) -> Figure | Empty:
    score = best["final_score"].where(best["workload"] != "vpg", best["last_return"])
    known = one_of_each_seed(best[score.notna()], ["workload", "line"])
    if known.empty:
        return _TABLE_4, "no completed run of VPG or TD3 with a score"
    panels = [
        dots(group, *_SCORES[algorithm], "median", panel=display(algorithm))
        for algorithm, group in _by_algorithm(known)
    ]
    published = "; ".join(
        f"{display(algorithm)} in {display(framework)} {mean:,} ± {spread:,}"
        for (algorithm, framework), (mean, spread) in RETURNS.items()
    )
    text = (
        f"The paper's means and standard deviations of three seeds: {published}. {in_words(known.assign(score=score), 'score', 'median')} "
        "The paper's returns are of training episodes at the end of its runs, of 750,000 (VPG) and 1.2 million steps (TD3). So are those of VPG here, in the last "
        "tenth of the steps: in evaluations, which take the mean actions, an untrained policy scores near 0. Those of TD3 are evaluations of the last policy. Here: "
        f"{_steps(known)}."
    )
    return Figure("jax-table-4", _TABLE_4, text, tuple(panels), legend(known))


def _steps(rows: pd.DataFrame) -> str:
    ran = rows.groupby("workload")["steps"].agg(["min", "max"])
    said = []
    for algorithm, row in ran.iterrows():
        steps = f"{row['min']:,.0f}" if row["min"] == row["max"] else f"{row['min']:,.0f} to {row['max']:,.0f}"
        said.append(f"{display(algorithm)} {steps} steps")
    return ", ".join(said)


def _curves(best: pd.DataFrame, data: PaperData) -> Figure | Empty:
    curves = []
    for algorithm, group in _by_algorithm(one_of_each_seed(best, ["workload", "line"])):
        named = group.assign(what=group["line"], where=display(algorithm), apart="")
        # The policy of VPG explores by itself; TD3's returns in training have its noise.
        drawn = (
            returns(named, data.episodes, "step") if algorithm == "vpg" else evaluations(named, data.episodes, "step")
        )
        curves.append(drawn)
    drawn = pd.concat(curves) if curves else pd.DataFrame()
    if drawn.empty:
        return _CURVES, "no returns of VPG or TD3 were recorded"
    titled = [
        replace(panel, title=panel.title or str(drawn["where"].iloc[0]))
        for panel in _apart(drawn, "environment steps", "return")
    ]
    text = (
        "VPG: returns of training episodes, as in the paper. TD3: evaluations without noise. In the paper, PyTorch's TD3 "
        "is at 9,800, 4,700 and, after a collapse, below 3,000 after 750,000 steps, JAX's at 3,700, 5,100 and 4,700; all runs of VPG are between -200 and 50. On HalfCheetah random "
        "actions have returns of about -280 to -300, and VPG of OpenAI's Spinning Up shows nothing before a million steps: it is at -264, -171 and -49 after 100,000, 500,000 "
        f"and a million. {band_in_words(drawn)}"
    )
    return Figure("jax-3", _CURVES, text, tuple(titled), legend(drawn, lines=True))


def _apart(drawn: pd.DataFrame, x: str, y: str) -> Iterator[Panel]:
    """Give a panel for each algorithm, each with its own axes: their returns differ by a factor of a hundred."""
    for title, part in drawn.groupby("where", sort=False):
        for panel in bands(part, x, y):
            yield replace(panel, title=str(title))


def _times(best: pd.DataFrame, phases: pd.DataFrame) -> Figure | Empty:
    """Draw JAX's times of updates and of whole runs as shares of PyTorch's, per environment step."""
    known = with_updates(best[best["profile"].isna()], phases)
    known = known[known["update_per_step"].notna()]
    if known.empty:
        return _TIMES, "no machine ran one configuration each of PyTorch and JAX"
    known = known.assign(time_per_step=known["training_time"] / known["steps"])
    places = list(known.groupby(["place", "where"], sort=True))
    shares: list[dict[str, Any]] = []
    for (place, where), here in places:
        for algorithm, part, added in _ways(here):
            torch, jax = (part[part["framework"] == name] for name in ("torch", "jax"))
            if torch["what"].nunique() != 1 or jax["what"].nunique() != 1:
                continue
            for what, column in (("update", "update_per_step"), ("whole run", "time_per_step")):
                over, under = (runs[column].to_numpy(float) for runs in (jax, torch))
                if min(over.min(), under.min()) > 0:
                    share = ratio(over, under)
                    named = f"{place}, {where}" if known["place"].nunique() > 1 else where
                    name = f"{display(algorithm)}, {what}{added}" + (f" · {named}" if len(places) > 1 else "")
                    shares.append(
                        {"line": name, "value": share.value, "low": share.low, "high": share.high,
                         "published": np.nan if added else SHARES.get((algorithm, what), np.nan), "seeds": min(len(over), len(under))}
                    )  # fmt: skip
    if not shares:
        return _TIMES, "no machine ran one configuration each of PyTorch and JAX"
    text = (
        "JAX's time per environment step, divided by PyTorch's: the ratio of geometric means over seeds, its bar the 95 % interval (Welch's t on "
        "logarithms). Here the update ends when its results are there, unless the run did not wait, as the public code, and no profiler ran. The diamond is the paper's number, of cProfile, which counts only "
        "the call of an update in JAX; its share for TD3 cannot be met, because the public code profiled one step without an update. The whole run is the "
        "training, without evaluations, which the paper's runs do not have, and without set-up and compiling: the paper's updates are 2.0 % of its runs of VPG in PyTorch."
    )
    keyed = (Key("measured", colour=FRAMEWORKS["jax"][1]), Key("published", colour=GREY))
    return Figure("jax-6", _TIMES, text, (_shares(pd.DataFrame(shares)),), keyed)


def _shares(found: pd.DataFrame) -> Panel:
    drawn = found.assign(text=[in_short(value) for value in found["value"]])
    chart = intervals(drawn, "JAX's time / PyTorch's", FRAMEWORKS["jax"][1], 1.0)
    table = found.rename(columns={"line": "what", "value": "JAX / PyTorch", "low": "from", "high": "to"})
    return Panel(chart, table, "", len(found))


def _faults(rows: pd.DataFrame) -> Figure | Empty:
    """Draw the last policies of the runs with each fault, with none (corrected), and with all (as published)."""
    rows = rows[rows["final_score"].notna() & (rows["workload"] == "td3")]
    names = [_fault(json.loads(text)) for text in rows["config"]]
    rows = rows.assign(line=pd.Series(names, rows.index, dtype=object)).dropna(subset="line")
    rows = one_of_each_seed(rows, ["line"])
    if rows.empty:
        return _CODE, "no completed run of spinup-jax-published"
    order = [name for name in (*_FAULTS, "all of them, as published") if name in set(rows["line"])]
    mean, spread = RETURNS["td3", "jax"]
    panel = dots(rows, "final_score", "return of the last policy", "median", rule=mean, names=order)
    text = (
        "TD3 in JAX, corrected, with each fault of the public code alone, and with all of them that are settings, run here (there tanh is in the policy only, and its output is not bounded). "
        f"{in_words(rows, 'final_score', 'median')} {_steps(rows)}. The dashed line is what the paper has of that code: {mean:,} ± {spread:,} after 1.2 million steps, on "
        "HalfCheetah-v2. Two more of its faults are in how it measures, and change no return: it does not wait for JAX, and its profiler of TD3 covers one step without an "
        "update. What they hide is in spinup-jax-profiles."
    )
    return Figure("jax-faults", _CODE, text, (panel,), legend(rows))


def _fault(config: dict[str, Any]) -> str | None:
    """Name the only fault of a configuration; None if it has some, but not all."""
    given = {name: config.get(name, value) for name, value in _CORRECT.items()}
    every = {name: value for fault in _FAULTS.values() for name, value in fault.items()}
    if given == _CORRECT | every:
        return "all of them, as published"
    return next((name for name, fault in _FAULTS.items() if given == _CORRECT | fault), None)


def _ways(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, str]]:
    """Give the runs of each algorithm that wait for each phase, and those that do not, with what names them."""
    hasty = np.array([bool(json.loads(text).get("unsynchronized")) for text in rows["config"]], bool)
    for algorithm, part in _by_algorithm(rows.assign(hasty=hasty)):
        for is_hasty, own in part.groupby("hasty"):
            yield algorithm, own, ", without waiting" if is_hasty else ""


def _by_algorithm(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for algorithm in _ALGORITHMS:
        if len(group := rows[rows["workload"] == algorithm]):
            yield algorithm, group
