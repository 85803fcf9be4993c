"""Claims of equality, of a range, with a number, of algorithms and of clusters; and those of the Cirrus paper on known truth."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpcrl.errors import SpecError
from hpcrl.report.claims import Verdict, judge
from hpcrl.spec.claims import read_claims
from hpcrl.spec.document import read_document
from hpcrl.spec.library import Library
from tests.builders import write_yaml
from tests.report.test_claims import EAGER, FAST, LAZY, LESS, ON_CPU, PAPER, SLOW, runs, verdict

SAME = {"kind": "same", "measure": "training_time", "this": LAZY | ON_CPU, "than": {"execution": "eager"}, "within": 10}
NAN = float("nan")


@pytest.mark.parametrize(
    ("lazy", "word"),
    [
        ((10.2, 10.3, 10.1), "agrees"),
        (SLOW, "contradicted"),
        ((9.0, 10.0, 12.0), "not shown"),  # no difference is shown, and no equality
        ((10.2,), "cannot be tested here"),
    ],
)
def test_the_same(tmp_path: Path, lazy: tuple[float, ...], word: str) -> None:
    found = verdict(tmp_path, SAME, *runs("torch", "lazy", *lazy), *runs("torch", "eager", *FAST))
    assert found.verdict == word
    if len(lazy) > 1:
        assert "at 90 %) times that of PyTorch eager on CPU, and a factor below 1.1 counts as none" in found.measured


def test_a_small_difference_that_is_shown_is_within_the_margin(tmp_path: Path) -> None:
    rows = [*runs("torch", "lazy", 10.30, 10.31, 10.32), *runs("torch", "eager", 10.00, 10.01, 10.02)]
    assert verdict(tmp_path, SAME, *rows).verdict == "agrees"
    assert verdict(tmp_path, LESS, *rows).verdict == "contradicted"


WITHIN = {"kind": "within", "measure": "training_time", "configurations": [LAZY | ON_CPU], "low": 9, "high": 11}


@pytest.mark.parametrize(
    ("times", "word"), [(FAST, "agrees"), (SLOW, "contradicted"), ((8.9, 10.0, 11.1), "not shown"), ((10.0,), "cannot be tested here")]
)  # fmt: skip
def test_within(tmp_path: Path, times: tuple[float, ...], word: str) -> None:
    found = verdict(tmp_path, WITHIN, *runs("torch", "lazy", *times))
    assert found.verdict == word
    if len(times) > 1:
        assert found.measured.endswith("at 90 %); by the claim at least 9 and at most 11.")


@pytest.mark.parametrize(("scores", "word"), [
    ((21, 22, 23, 24, 22), "agrees"), ((99, 100, 100, 100, 98), "contradicted"), ((21, 22, 23, 24, 100), "not shown"),
    ((21, 22, 23), "cannot be tested here"),
])  # fmt: skip
def test_a_score_within(tmp_path: Path, scores: tuple[float, ...], word: str) -> None:
    test = WITHIN | {"measure": "final_score", "low": 20, "high": 25}
    rows = [each for score in scores for each in runs("torch", "lazy", 10.0, final_score=score)]
    found = verdict(tmp_path, test, *rows)
    assert found.verdict == word
    if word == "cannot be tested here":
        assert "has a median of 22, but 3 runs cannot show its range: the minimum is 5" in found.measured


@pytest.mark.parametrize(
    ("ratio", "word", "where"), [(0.5, "agrees", "inside"), (0.8, "agrees in direction", "outside")]
)
def test_a_number_of_the_paper(tmp_path: Path, ratio: float, word: str, where: str) -> None:
    fast, slow = runs("torch", "lazy", *FAST), runs("torch", "eager", *SLOW)
    found = verdict(tmp_path, LESS | {"ratio": ratio}, *fast, *slow)
    assert found.verdict == word
    assert (
        f"has 0.5 (0.489 to 0.511) times that of PyTorch eager on CPU; the paper's {ratio:g} is {where}"
        in found.measured
    )
    reverse = {"kind": "more", "measure": "training_time", "this": EAGER | ON_CPU, "than": {"execution": "lazy"}}
    assert verdict(tmp_path, reverse | {"ratio": 1 / ratio}, *fast, *slow).verdict == word
    swapped = [*runs("torch", "lazy", *SLOW), *runs("torch", "eager", *FAST)]
    assert verdict(tmp_path, LESS | {"ratio": ratio}, *swapped).verdict == "contradicted"


def test_a_number_of_the_paper_needs_values_with_a_ratio(tmp_path: Path) -> None:
    """One GPU was never busy: the two are compared by ranks, and nothing is said of the number."""
    low, high = (runs("torch", mode, *[10.0] * 5) for mode in ("lazy", "eager"))
    for seed, (under, over) in enumerate(zip(low, high, strict=True)):
        under["gpu_percent"], over["gpu_percent"] = float(seed), 50.0 + seed
    found = verdict(tmp_path, LESS | {"measure": "gpu"}, *low, *high)
    assert found.verdict == "agrees"
    found = verdict(tmp_path, LESS | {"measure": "gpu", "ratio": 0.5}, *low, *high)
    assert found.verdict == "agrees in direction"
    assert found.measured.endswith("; 0 has no ratio to compare with the paper's 0.5.")


def test_runs_that_missed_the_goal_are_named(tmp_path: Path) -> None:
    lazy = runs("torch", "lazy", *FAST)
    lazy[0]["goal_time"] = NAN
    found = verdict(tmp_path, LESS | {"measure": "goal_time"}, *lazy, *runs("torch", "eager", *SLOW))
    assert found.verdict == "agrees" and "(values of 2 of 3 runs of PyTorch lazy on CPU only)" in found.measured


BOTH = PAPER | {
    "executions": {"numpy": "eager", "torch": "lazy"},
    "algorithms": {"dqn": "DQN", "ppo": "PPO"},
    "clusters": {"Old": ["old", "older"], "New": ["new"]},
}


def judged(tmp_path: Path, test: dict[str, Any], *rows: dict[str, Any], **more: Any) -> list[Verdict]:
    claim = {"id": "c", "text": "A claim.", "where": "1", "shown_by": test, **more}
    file = write_yaml(tmp_path / "b.yaml", BOTH | {"claims": [claim]})
    return judge(read_claims(read_document(file)), pd.DataFrame(rows), "s", None)


def test_algorithms_are_told_apart_and_a_framework_has_its_own_mode(tmp_path: Path) -> None:
    test = {"kind": "less", "measure": "training_time", "this": {"framework": "torch", "algorithm": "ppo", **ON_CPU}, "than": {"framework": "numpy"}}  # fmt: skip
    rows = [
        *runs("torch", "lazy", *FAST, workload="ppo"),
        *runs("torch", "lazy", *SLOW, workload="dqn"),
        *runs("numpy", "eager", *SLOW, workload="ppo"),
        *runs("numpy", "eager", *FAST, workload="dqn"),
    ]
    (found,) = judged(tmp_path, test, *rows)
    assert (found.verdict, found.tested, found.comparisons) == ("agrees", 1, 1)
    assert "PyTorch PPO lazy on CPU has 0.5 (0.489 to 0.511) times that of NumPy PPO eager on CPU" in found.measured
    (found,) = judged(tmp_path, test | {"this": test["this"] | {"algorithm": "dqn"}}, *rows)
    assert found.verdict == "contradicted"


ON_NEW = {"framework": "torch", "algorithm": "dqn", "cluster": "New", **ON_CPU}
NEWER = {"kind": "less", "measure": "training_time", "this": ON_NEW, "than": {"cluster": "Old"}}


def test_a_claim_of_clusters_is_judged_once(tmp_path: Path) -> None:
    rows = [*runs("torch", "lazy", *FAST, cluster="new (C, 2 threads)"), *runs("torch", "lazy", *SLOW, cluster="old")]
    (found,) = judged(tmp_path, NEWER, *rows)
    assert (found.cluster, found.verdict) == ("new (C, 2 threads), old", "agrees")
    assert "PyTorch DQN lazy on CPU of New has 0.5" in found.measured
    (found,) = judged(tmp_path, NEWER, *rows, *runs("torch", "lazy", *SLOW, cluster="older"))
    assert "PyTorch DQN lazy on CPU of Old means 2 configurations of this study." in found.measured


def test_other_clusters_are_substitutes_that_decide_nothing(tmp_path: Path) -> None:
    same = NEWER | {"kind": "same", "within": 10}
    rows = [*runs("torch", "lazy", *FAST, cluster="x"), *runs("torch", "lazy", *FAST, cluster="y")]
    (found,) = judged(tmp_path, same, *rows)
    assert (found.verdict, found.measured) == ("cannot be tested here", "Not tested: no run on New.")
    assert found.beside.startswith("With substitutes (x for New; y for Old): agrees.")
    assert "PyTorch DQN lazy on CPU of x has 1 (" in found.beside and "of Old" not in found.beside
    (found,) = judged(tmp_path, same, *rows, stand_ins=False)
    assert not found.beside
    (found,) = judged(tmp_path, same, *runs("torch", "lazy", *FAST, cluster="x"))
    assert not found.beside


@pytest.mark.parametrize(("test", "said"), [
    (WITHIN | {"low": 12}, "low: expected less than high (11), got 12"),
    ({**WITHIN, "low": None, "high": None}, "needs `low`, `high` or both"),
    (SAME | {"measure": "final_score"}, "scores may be 0: use kind `within`"),
    (LESS | {"measure": "last_return", "ratio": 0.5}, "ratio: scores may be 0 and have none: leave it out"),
    (NEWER | {"this": ON_CPU}, "than.cluster: `this` names no cluster: name the one to compare"),
    (NEWER | {"this": ON_NEW | {"algorithm": "pop"}}, "no algorithm 'pop' in this file; did you mean 'ppo'?"),
    (NEWER | {"this": ON_NEW | {"cluster": "Now"}}, "no cluster 'Now' in this file; did you mean 'New'?"),
])  # fmt: skip
def test_faults_of_kinds(tmp_path: Path, test: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        judged(tmp_path, test, *runs("torch", "lazy", *FAST))
    assert said in str(caught.value)


def test_each_framework_needs_its_modes(tmp_path: Path) -> None:
    claim = {"id": "c", "text": "A claim.", "where": "1", "shown_by": LESS}
    file = write_yaml(tmp_path / "b.yaml", BOTH | {"executions": {"torch": "lazy", "jaxx": "lazy"}, "claims": [claim]})
    with pytest.raises(SpecError) as caught:
        read_claims(read_document(file))
    assert "has no modes of 'numpy'" in str(caught.value) and "no framework 'jaxx'" in str(caught.value)


# --- the claims of the Cirrus paper, on runs that are made as it says


def paper_runs(cluster: str, speed: dict[str, float]) -> list[dict[str, Any]]:
    """Return six runs of each cell of the paper with 2, 16 and 32 cores. Those with 16 use half as many cores again as those with 2."""
    found = []
    for tasks, cpus, where in ((1, 2, "2 cores"), (1, 16, "16 cores"), (2, 16, "2 × 16 cores")):
        for framework, execution in (("torch", "eager"), ("tensorflow", "lazy")):
            for algorithm, base in (("ppo", 5.0), ("rainbow", 200.0)):
                time = base * speed[f"{framework} {algorithm}"]
                cpu = (60.0 if framework == "torch" else 40.0) + 10 * (algorithm == "rainbow")
                own = tasks * 2 * cpu / 100 * (1.5 if where == "16 cores" else 1)
                for seed, noise in enumerate((0.99, 1.0, 1.01, 1.005, 0.995, 1.0), start=1):
                    stuck = framework == "tensorflow" and algorithm == "ppo"
                    found += runs(
                        framework, execution, time * noise, cluster=cluster, workload=algorithm, tasks=tasks, cpus=cpus, where=where,
                        seed=seed, wall_time=time, cpu_seconds=time * tasks * 2 * cpu / 100, nodes=tasks, machine_cpu_percent=cpu,
                        machine_memory_percent={"torch": 10.0, "tensorflow": 15.0 if algorithm == "ppo" else 10.2}[framework] * noise,
                        final_score=22.0 + noise if stuck else 100.0, best_score=25.0 if stuck else 100.0,
                        goal_step=NAN if stuck else 4000.0, goal_time=NAN if stuck else time * noise,
                        machine_memory_range=1.01 * noise if noise > 1 else 1.01, memory_range=1.01,
                        machine_cpu_per_step=cpu * time, machine_memory_per_step=(10 if framework == "torch" else 15) * time * noise,
                        cpu_per_step=time, own_cores=own, own_share=own / (tasks * cpus),
                    )  # fmt: skip
    return found


EVEN = {"torch ppo": 1.0, "torch rainbow": 1.0, "tensorflow ppo": 0.8286, "tensorflow rainbow": 1 / 0.2333}


def of_paper(*rows: dict[str, Any]) -> dict[tuple[str, str], Verdict]:
    claims = Library().claims("cirrus-pytorch-tensorflow")
    return {(each.cluster, each.claim): each for each in judge(claims, pd.DataFrame(rows), "s", 100)}


def test_the_cirrus_paper_on_runs_that_are_as_it_says() -> None:
    ubuntu = EVEN | {"tensorflow ppo": 0.8286 * 0.6667, "tensorflow rainbow": 0.5 / 0.2333}
    found = of_paper(*paper_runs("cirrus", EVEN), *paper_runs("ubuntu", ubuntu))
    words = {claim: each.verdict for (cluster, claim), each in found.items() if cluster != "ubuntu"}
    without_gpus = {name: word for name, word in words.items() if word != "cannot be tested here"}
    assert without_gpus == {
        "tensorflow-ppo-faster": "agrees",
        "torch-rainbow-faster": "agrees",
        "more-cores-are-taken": "agrees",
        "utilisation-falls-with-cores": "agrees",
        "ppo-faster-than-rainbow": "agrees",
        "same-number-of-episodes": "agrees",
        "tensorflow-ppo-local-optimum": "agrees",
        "the-others-reach-the-optimum": "agrees",
        "torch-uses-more-cpu": "agrees",
        "tensorflow-uses-more-memory": "agrees",
        "rainbow-takes-40-times-as-long": "agrees",
        "rainbow-optimum-in-200-seconds": "agrees",
        "ppo-uses-less-cpu-than-rainbow": "agrees",
        "memory-constant-in-time": "agrees",
        "ppo-tensorflow-more-memory": "agrees",
        "rainbow-memory-similar": "agrees",
        "ppo-torch-more-cpu-on-any-cores": "agrees",
        "ppo-tensorflow-more-memory-on-any-cores": "agrees",
        "ppo-torch-more-cpu-per-step": "agrees",
        "ppo-torch-less-memory-per-step": "agrees",
        "rainbow-torch-more-cpu-on-any-cores": "agrees",
        "rainbow-tensorflow-more-memory-on-any-cores": "agrees",
        "rainbow-torch-more-cpu-per-step": "contradicted",  # by the paper's own times
        "rainbow-torch-less-memory-per-step": "agrees",
        "tensorflow-ppo-faster-on-ubuntu": "agrees",
        "tensorflow-rainbow-faster-on-ubuntu": "agrees",
        "torch-the-same-on-both": "agrees",
        "no-difference-by-operating-system": "contradicted",  # by the paper's own numbers
    }
    assert found["cirrus, ubuntu", "tensorflow-ppo-faster-on-ubuntu"].tested == 1


def test_the_claims_of_each_section_of_the_cirrus_paper() -> None:
    claims = Library().claims("cirrus-pytorch-tensorflow").claims
    sections = Counter(re.split("[,;]", claim.where)[0] for claim in claims)
    assert sections == {
        "3.2": 1, "3.3.4": 2, "5.1.1": 8, "5.1.2": 12, "5.1.3": 9, "5.1.4": 22, "5.3.1": 2, "chapter 6": 2
    }  # fmt: skip
    untestable = {claim.id for claim in claims if claim.shown_by.kind == "untestable"}
    assert untestable == {
        "mountain-car-does-not-converge", "windows-as-ubuntu", "virtual-machines-use-more-when-idle",
        "ppo-torch-larger-integral-of-the-return", "rainbow-torch-trains-more-often",
    }  # fmt: skip


def test_what_the_cirrus_paper_says_of_gpus_needs_gpus() -> None:
    claims = Library().claims("cirrus-pytorch-tensorflow")
    found = of_paper(*paper_runs("cirrus", EVEN))
    about = [each.id for each in claims.claims if "GPU" in str(each.shown_by)]
    assert len(about) == 25
    for name in about:
        each = found["cirrus", name]
        assert (each.verdict, each.tested) == ("cannot be tested here", 0)
        assert "no run on " in each.measured and "GPU" in each.measured
    assert found["cirrus", "rainbow-torch-trains-more-often"].verdict == "cannot be tested here"


def test_the_cirrus_paper_on_runs_that_are_otherwise() -> None:
    other = {"torch ppo": 1.0, "torch rainbow": 5.0, "tensorflow ppo": 1.5, "tensorflow rainbow": 1.0}
    rows = paper_runs("cirrus", other)
    for each in rows:
        each |= {"machine_memory_range": 1.5, "final_score": 100.0, "best_score": 50.0, "goal_step": NAN}
    found = {claim: each.verdict for (_, claim), each in of_paper(*rows).items()}
    contradicted = {name for name, word in found.items() if word == "contradicted"}
    assert contradicted >= {
        "tensorflow-ppo-faster", "torch-rainbow-faster", "tensorflow-ppo-local-optimum", "the-others-reach-the-optimum",
        "rainbow-optimum-in-200-seconds", "memory-constant-in-time",
    }  # fmt: skip
    assert found["no-difference-by-operating-system"] == "cannot be tested here"
