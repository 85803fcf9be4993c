"""How often the report's intervals hold the truth, and how often it calls noise a difference: ``python -m benchmarks.coverage``.

Everything goes through hpcrl's own functions, on data whose truth is known.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.special import ndtr

from hpcrl.report.baseline import REGRESSION, compare, judge
from hpcrl.report.findings import findings
from hpcrl.report.statistics import (
    Values,
    bootstrap,
    geometric_mean,
    interquartile_mean,
    median,
    probability_of_improvement,
    ratio,
)
from hpcrl.report.summary import sentences

SEEDS = (2, 3, 5, 10, 20)
_NONE = " differ beyond chance in 0 "
Draw = Callable[[np.random.Generator, int], Values]


def _bimodal(generator: np.random.Generator, count: int) -> Values:
    """Draw scores of runs of which two in five do not learn."""
    learnt = generator.random(count) < 0.6
    return np.where(learnt, 950.0, 200.0) + generator.normal(0, 30, count)


TIMES: dict[str, Draw] = {
    "normal, 5 % spread": lambda generator, count: generator.normal(100, 5, count),
    "lognormal, s = 0.3": lambda generator, count: generator.lognormal(4, 0.3, count),
    "lognormal, s = 1": lambda generator, count: generator.lognormal(4, 1, count),
    "bimodal, 100 or 110": lambda generator, count: (
        np.where(generator.random(count) < 0.5, 100.0, 110.0) + generator.normal(0, 1, count)
    ),
}
SCORES: dict[str, Draw] = {
    "normal": lambda generator, count: generator.normal(500, 50, count),
    "skewed (lognormal, s = 1)": lambda generator, count: generator.lognormal(5, 1, count),
    "bimodal, two in five fail": _bimodal,
    "capped at 1,000": lambda generator, count: np.minimum(1000, generator.normal(980, 60, count)),
}


# Normal scores so many deviations apart.
SHIFTS = {"equal": 0.0, "1 deviation apart": 1.0, "3 deviations apart": 3.0}


def covers_geometric_mean(draw: Draw, seeds: int, trials: int, generator: np.random.Generator) -> float:
    truth = float(np.exp(np.log(draw(generator, 1_000_000)).mean()))
    intervals = [geometric_mean(draw(generator, seeds)) for _ in range(trials)]
    return float(np.mean([interval.low <= truth <= interval.high for interval in intervals]))  # type: ignore[operator]


def covers_improvement(shift: float, seeds: int, trials: int, generator: np.random.Generator) -> float:
    truth = float(ndtr(shift / np.sqrt(2)))
    pairs = [generator.normal((shift, 0), 1, (seeds, 2)).T for _ in range(trials)]
    intervals = [probability_of_improvement(pair[0], pair[1]) for pair in pairs]
    return float(np.mean([interval.low <= truth <= interval.high for interval in intervals]))  # type: ignore[operator]


def covers_ratio(draw: Draw, seeds: int, trials: int, generator: np.random.Generator) -> float:
    """Return how often the interval of a ratio of two configurations that do not differ holds 1."""
    found = [ratio(draw(generator, seeds), draw(generator, seeds)) for _ in range(trials)]
    return float(np.mean([each.low <= 1 <= each.high for each in found]))  # type: ignore[operator]


def covers_median(draw: Draw, seeds: int, trials: int, generator: np.random.Generator) -> float:
    truth = float(np.median(draw(generator, 1_000_000)))
    found = [median(draw(generator, seeds)) for _ in range(trials)]
    return float(np.mean([each.low <= truth <= each.high for each in found]))  # type: ignore[operator]


def covers_interquartile_mean(draw: Draw, seeds: int, trials: int, generator: np.random.Generator) -> float:
    # Of the distribution itself, as Agarwal et al. estimate it.
    truth = float(interquartile_mean(draw(generator, 1_000_000)))
    found = [bootstrap(draw(generator, seeds), interquartile_mean, 1_000, seed=number) for number in range(trials)]
    return float(np.mean([each.low <= truth <= each.high for each in found]))  # type: ignore[operator]


def _dataset(
    generator: np.random.Generator, configurations: int, seeds: int, noise: float, slower: float = 1
) -> pd.DataFrame:
    """Draw completed cells: times and memory with noise around 10 s and 1 GiB, scores of which two in five fail."""
    count = configurations * seeds
    return pd.DataFrame(
        {
            "study": "s", "cluster": "c", "where": "1 core", "task": "", "machine": "C", "outcome": "completed", "crowded": False,
            "what": np.repeat([f"configuration {number}" for number in range(configurations)], seeds),
            "training_time": 10 * slower * np.exp(generator.normal(0, noise, count)),
            "compile_time": np.exp(generator.normal(0, 2 * noise, count)),
            "memory": 2.0**30 * np.exp(generator.normal(0, noise / 4, count)),
            "final_score": _bimodal(generator, count),
        }
    )  # fmt: skip


def false_findings(
    seeds: int, trials: int, generator: np.random.Generator, configurations: int = 16
) -> dict[str, float]:
    """Return the shares of reports on configurations of one distribution that name a difference of times, memory, scores, or any."""
    alarms = dict.fromkeys(("times", "memory", "scores", "any of them"), 0)
    for _ in range(trials):
        rows = _dataset(generator, configurations, seeds, 0.05).assign(dash="", colour="")
        rows = rows.assign(wall_time=rows["training_time"] + 1, steps=1000, evaluation_time=0.0, hex="")
        speed, *others = findings(rows)
        in_full, *_ = sentences(rows)
        in_full = re.sub(r"(a|A) difference between .*? times as long \(95 % interval\)", "", in_full)
        told = {
            "times": not speed.startswith("No configuration is shown to be faster") or " takes " in in_full,
            "memory": any(text.startswith("Least memory") for text in others),
            "scores": any(" differ beyond chance in " in text.replace(_NONE, "") for text in others),
        }
        for kind, shown in {**told, "any of them": any(told.values())}.items():
            alarms[kind] += shown
    return {kind: number / trials for kind, number in alarms.items()}


def false_alarms(seeds: int, trials: int, generator: np.random.Generator, configurations: int = 16) -> float:
    """Return the share of reports on two datasets of one distribution that name any regression."""
    alarms = 0
    for _ in range(trials):
        new, old = (_dataset(generator, configurations, seeds, 0.05) for _ in range(2))
        alarms += any(each.verdict == REGRESSION for each in judge(compare(new, old)))
    return alarms / trials


def power(seeds: int, slower: float, trials: int, generator: np.random.Generator, configurations: int) -> float:
    """Return the share of configurations, all slower by this factor at 2 % noise, of which the report says so."""
    named = 0
    for _ in range(trials):
        new = _dataset(generator, configurations, seeds, 0.02, slower)
        changes = judge(compare(new, _dataset(generator, configurations, seeds, 0.02)))
        named += sum(each.verdict == REGRESSION and each.measure == "training time" for each in changes)
    return named / (trials * configurations)


def _print(title: str, first: str, rows: dict[str, list[float]], places: int = 1) -> None:
    print(f"\n{title}\n\n| {first} | " + " | ".join(f"{count} seeds" for count in SEEDS) + " |")
    print("|---|" + "---:|" * len(SEEDS))
    for name, values in rows.items():
        print(f"| {name} | " + " | ".join(f"{100 * value:.{places}f}" for value in values) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    generator = np.random.default_rng(0)
    for title, covers, draws in (
        ("Ratio of two times: % of 95 % intervals that hold it (Welch's t on logarithms)", covers_ratio, TIMES),
        ("Geometric mean of times: % of 95 % intervals that hold it (Student's t on logarithms)", covers_geometric_mean, TIMES),
        ("Median score: % of intervals that hold it (order statistics; 50, 75, 93.8, 97.9 and 95.9 are stated)", covers_median, SCORES),
        ("Interquartile mean: % of 95 % intervals that hold it (percentile bootstrap)", covers_interquartile_mean, SCORES),
    ):  # fmt: skip
        _print(
            title, "data", {name: [covers(draw, n, trials, generator) for n in SEEDS] for name, draw in draws.items()}
        )
    rows = {name: [covers_improvement(shift, n, trials, generator) for n in SEEDS] for name, shift in SHIFTS.items()}
    _print("Probability of improvement: % of 95 % intervals that hold it (Newcombe 2006, method 5)", "scores", rows)
    few = max(20, trials // 5)
    shares = [false_findings(seeds, trials, generator) for seeds in SEEDS]
    _print(
        f"The report's findings and sentences on 16 equal configurations: % of {trials} reports with a difference",
        "of",
        {kind: [share[kind] for share in shares] for kind in shares[0]},
    )
    alarms = [false_alarms(seeds, few, generator) for seeds in SEEDS]
    _print(
        f"`report --baseline`, nothing changed: % of {few} reports with any regression",
        "16 configurations",
        {"any of 64 tests": alarms},
    )
    rows = {
        f"{100 * slower - 100:.0f} % slower, {count} configuration{'s' if count > 1 else ''}": [
            power(seeds, slower, max(10, few // count), generator, count) for seeds in SEEDS
        ]
        for count in (1, 16)
        for slower in (1.05, 1.1, 1.2)
    }
    _print("`report --baseline`, all slower, 2 % noise: % of configurations of which it says so", "change", rows, 0)


if __name__ == "__main__":
    main()
