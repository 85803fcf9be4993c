from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpcrl.collect.merge import collect
from hpcrl.errors import SpecError
from hpcrl.report.claims import Verdict, judge
from hpcrl.report.integrals import with_integrals
from hpcrl.report.write import write_report
from hpcrl.spec.claims import read_claims
from hpcrl.spec.document import read_document
from hpcrl.spec.library import Library
from tests.builders import cells_of, dqn_study, planned, write_record, write_yaml
from tests.collect.gathering import no_slurm

PAPER: dict[str, Any] = {
    "paper": "short-paper",
    "title": "A paper",
    "frameworks": {"numpy": "NumPy", "torch": "PyTorch"},
    "executions": ["eager", "lazy"],
    "places": {"CPU": {"device": "cpu", "parallelism": "none"}, "GPU": {"device": "gpu"}},
    "stand_ins": {"GPU": {"device": "cpu", "parallelism": "horovod"}},
}
LAZY, EAGER = {"framework": "torch", "execution": "lazy"}, {"framework": "torch", "execution": "eager"}
ON_CPU = {"place": "CPU"}


def claims(tmp_path: Path, *tests: dict[str, Any], **more: Any) -> Path:
    listed = [
        {"id": f"c{number}", "text": "A claim.", "where": "Results", "shown_by": test, **more}
        for number, test in enumerate(tests)
    ]
    return write_yaml(tmp_path / "jobs/claims/short-paper.yaml", PAPER | {"claims": listed})


def runs(framework: str, execution: str, *times: float, **changes: Any) -> list[dict[str, Any]]:
    """Return one completed run for each training time, as the report sees them, one after another on one machine."""
    rows = [
        {
            "cluster": "c", "framework": framework, "execution": execution, "gpus": 0, "tasks": 1, "cpus": 1, "overcommit": False, "workload": "dqn", "nodes": 1, "hosts": 1,
            "parallelism": "none", "what": f"{framework} {execution}", "where": "1 core", "outcome": "completed", "seed": seed,
            "training_time": time, "wall_time": time + 1, "final_score": 100.0 + seed, "best_score": 200.0, "goal_step": 10.0,
            "goal_time": time / 2, "setup_time": 1.0, "compile_time": 0.0, "cpu_seconds": time + 1, "memory": 1e6 * time, "shared": False, "crowded": False, "goal_wall_time": float("nan"),
            "machine_cpu_percent": 52.0, "machine_memory_percent": 20.0 + seed / 10, "gpu_percent": float("nan"),
            "gpu_memory_peak": float("nan"), "energy": float("nan"), "threads": 2.0, "machine": "C, 2 threads",
        }
        | changes
        for seed, time in enumerate(times, start=1)
    ]  # fmt: skip
    return [
        {
            "machine_cpu_mean": row["machine_cpu_percent"], "machine_memory_mean": row["machine_memory_percent"],
            "own_cores": row["cpu_seconds"] / row["wall_time"],
            "cpu_utilisation": row["cpu_seconds"] / (row["wall_time"] * row["cpus"] * row["tasks"]),
        }
        | row
        for row in rows
    ]  # fmt: skip


def verdict(tmp_path: Path, test: dict[str, Any], *rows: dict[str, Any], goal: float = 200, **more: Any) -> Verdict:
    claims(tmp_path, test, **more)
    (found,) = judge(
        read_claims(read_document(tmp_path / "jobs/claims/short-paper.yaml")), pd.DataFrame(rows), "short", goal
    )
    return found


FAST, SLOW = (10.0, 10.1, 10.2), (20.0, 20.2, 20.4)
LESS = {"kind": "less", "measure": "training_time", "this": LAZY | ON_CPU, "than": {"execution": "eager"}}


@pytest.mark.parametrize(
    ("lazy", "eager", "word", "said"),
    [
        (FAST, SLOW, "agrees", "PyTorch lazy on CPU has 0.5 ("),
        (SLOW, FAST, "contradicted", "PyTorch lazy on CPU has 2 ("),
        ((10.0, 20.0, 14.0), (20.0, 10.0, 15.0), "no difference shown", "times that of PyTorch eager on CPU."),
        (
            FAST[:1],
            SLOW[:1],
            "cannot be tested here",
            "has 0.5 times that of PyTorch eager on CPU, but one run is not enough",
        ),
        (FAST, (), "cannot be tested here", "Not tested: PyTorch eager on CPU was not run."),
    ],
)
def test_faster(tmp_path: Path, lazy: Any, eager: Any, word: str, said: str) -> None:
    found = verdict(tmp_path, LESS, *runs("torch", "lazy", *lazy), *runs("torch", "eager", *eager))
    assert found.verdict == word
    assert said in found.measured


def test_an_interval_stands_beside_the_ratio(tmp_path: Path) -> None:
    found = verdict(tmp_path, LESS, *runs("torch", "lazy", *FAST), *runs("torch", "eager", *SLOW))
    assert found.measured == (
        "Training time: PyTorch lazy on CPU has 0.5 (0.489 to 0.511) times that of PyTorch eager on CPU."
    )


def test_of_several_comparisons_one_contradicts_and_all_must_agree(tmp_path: Path) -> None:
    test = {"kind": "less", "measure": "training_time", "this": {"execution": "lazy", **ON_CPU}, "than": {"execution": "eager"}}  # fmt: skip
    torch = [*runs("torch", "lazy", *FAST), *runs("torch", "eager", *SLOW)]
    both = [*torch, *runs("numpy", "lazy", *FAST), *runs("numpy", "eager", *SLOW)]
    against = [*torch, *runs("numpy", "lazy", *SLOW), *runs("numpy", "eager", *FAST)]
    open_ = [*torch, *runs("numpy", "lazy", *FAST), *runs("numpy", "eager", *FAST)]
    found = [verdict(tmp_path, test, *rows) for rows in (both, against, open_, torch)]
    assert [each.headline() for each in found] == [
        "agrees", "contradicted", "no difference shown", "agrees (1 of 2 comparisons)",
    ]  # fmt: skip


def test_a_contradiction_is_asked_with_all_the_others_at_once(tmp_path: Path) -> None:
    """One pair in twenty differs by chance at 5 %; alone it would contradict."""
    names = [f"f{number}" for number in range(20)]
    paper = PAPER | {"frameworks": {name: name for name in names}}
    test = {"kind": "less", "measure": "training_time", "this": {"execution": "lazy", **ON_CPU}, "than": {"execution": "eager"}}  # fmt: skip
    claim = {"id": "c", "text": "A claim.", "where": "Results", "shown_by": test}
    file = write_yaml(tmp_path / "p.yaml", paper | {"claims": [claim]})
    rows = [*runs("f0", "lazy", 10.8, 11.2, 11.6), *runs("f0", "eager", 9.7, 10.0, 10.3)]
    alone = judge(read_claims(read_document(file)), pd.DataFrame(rows), "s", None)
    for name in names[1:]:
        rows += [*runs(name, "lazy", 9.8, 10.0, 10.2), *runs(name, "eager", 9.8, 10.0, 10.2)]
    together = judge(read_claims(read_document(file)), pd.DataFrame(rows), "s", None)
    assert (alone[0].verdict, together[0].verdict) == ("contradicted", "no difference shown")


def test_an_extreme_needs_every_other_configuration(tmp_path: Path) -> None:
    test = {"kind": "most", "measure": "training_time", "this": EAGER | ON_CPU, "among": ON_CPU}
    numpy = [*runs("numpy", "eager", *FAST), *runs("numpy", "lazy", *FAST)]
    rows = [*runs("torch", "eager", *SLOW), *runs("torch", "lazy", *FAST)]
    found = [verdict(tmp_path, test, *each) for each in ([*rows, *numpy], rows)]
    assert [each.verdict for each in found] == ["agrees", "cannot be tested here"]
    assert found[1].measured.endswith("Not tested: NumPy eager on CPU was not run; NumPy lazy on CPU was not run.")
    slower = [*rows, *runs("numpy", "eager", 40.0, 40.4, 41.0)]
    assert verdict(tmp_path, test, *slower).verdict == "contradicted"
    assert verdict(tmp_path, test | {"kind": "least"}, *rows).verdict == "contradicted"


def test_a_ranking(tmp_path: Path) -> None:
    test = {"kind": "ranking", "measure": "training_time", "order": ["torch", "numpy"], "where": {"execution": "eager", **ON_CPU}}  # fmt: skip
    rows = [*runs("torch", "eager", *FAST), *runs("numpy", "eager", *SLOW)]
    assert verdict(tmp_path, test, *rows).verdict == "agrees"
    assert verdict(tmp_path, test | {"order": ["numpy", "torch"]}, *rows).verdict == "contradicted"


REACHES = {"kind": "reaches", "score": 200, "configurations": [LAZY | ON_CPU]}
MISSED = {"goal_step": float("nan"), "best_score": 150.0}


@pytest.mark.parametrize(
    ("reached", "missed", "expected", "word", "said"),
    [
        (5, 0, "all", "agrees", "5 of 5 (at least 55 % of all, at 95 %)"),
        (5, 0, "none", "contradicted", "5 of 5"),
        (0, 5, "none", "agrees", "0 of 5 (at most 45 % of all, at 95 %)"),
        (0, 5, "all", "contradicted", "0 of 5"),
        (4, 1, "all", "no difference shown", "4 of 5 (at least 34 % of all"),
        (4, 0, "all", "cannot be tested here", "has too few runs (4 of 4 did): the minimum is 5"),
    ],
)
def test_reaches(tmp_path: Path, reached: int, missed: int, expected: str, word: str, said: str) -> None:
    rows = [*runs("torch", "lazy", *[10.0] * reached), *runs("torch", "lazy", *[10.0] * missed, **MISSED)]
    found = verdict(tmp_path, REACHES | {"expected": expected}, *rows)
    assert found.verdict == word
    assert said in found.measured


def test_reaches_by_the_best_evaluation_where_the_study_has_another_goal(tmp_path: Path) -> None:
    rows = runs("torch", "lazy", *[10.0] * 5, goal_step=float("nan"))
    assert verdict(tmp_path, REACHES, *rows, goal=500).verdict == "agrees"
    assert verdict(tmp_path, REACHES, *rows, goal=200).verdict == "contradicted"


def test_a_run_that_was_cut_off_says_nothing_of_its_score(tmp_path: Path) -> None:
    cut = runs("torch", "lazy", *[10.0] * 5, **MISSED, outcome="timeout")
    found = verdict(tmp_path, REACHES, *cut)
    assert (found.verdict, found.measured) == (
        "cannot be tested here", "Not tested: PyTorch lazy on CPU did not complete (5 runs).",
    )  # fmt: skip
    found = verdict(tmp_path, REACHES, *cut, *runs("torch", "lazy", *[10.0] * 5))
    assert found.verdict == "agrees" and "and 5 did not complete" in found.measured


def test_fails(tmp_path: Path) -> None:
    test = {"kind": "fails", "configurations": [LAZY | ON_CPU]}
    done, cut = (runs("torch", "lazy", *[10.0] * 5, outcome=outcome) for outcome in ("completed", "timeout"))
    assert verdict(tmp_path, test, *done).verdict == "contradicted"
    assert verdict(tmp_path, test, *cut).verdict == "agrees"
    told = verdict(tmp_path, test, *cut, *runs("torch", "lazy", 10.0, outcome="cancelled")).measured
    assert "0 of 5 (at most 45 % of all, at 95 %), and 1 did not end by itself" in told


@pytest.mark.parametrize("outcome", ["running", "cancelled", "preempted", "node_fail", "lost"])
def test_a_run_that_was_ended_from_outside_has_not_failed(tmp_path: Path, outcome: str) -> None:
    """As all that run while a dataset is collected without the scheduler."""
    test = {"kind": "fails", "configurations": [LAZY | ON_CPU]}
    found = verdict(tmp_path, test, *runs("torch", "lazy", *[10.0] * 5, outcome=outcome))
    assert (found.verdict, found.measured) == (
        "cannot be tested here", "Not tested: PyTorch lazy on CPU did not end by itself (5 runs).",
    )  # fmt: skip


def test_two_kinds_of_machines_are_not_compared(tmp_path: Path) -> None:
    """Slurm started one configuration on other nodes of the cluster."""
    here, there = (f"{name}, 128 threads" for name in ("EPYC 7713", "EPYC 7413"))
    fast = runs("torch", "lazy", *FAST, machine=here, where="1 core (EPYC 7713)")
    slow = runs("torch", "eager", *SLOW, machine=there, where="1 core (EPYC 7413)")
    for test in (LESS, LESS | {"kind": "same", "within": 10}):
        found = verdict(tmp_path, test, *fast, *slow)
        assert found.verdict == "cannot be tested here"
        assert f"ran on different kinds of machines ({there}; {here})" in found.measured
    assert "different kinds" not in verdict(tmp_path, LESS | {"measure": "final_score"}, *fast, *slow).measured
    on_gpu = LESS | {"this": LAZY | ON_CPU, "than": {"place": "GPU"}}
    gpu = runs("torch", "lazy", *SLOW, gpus=1, machine=f"{there}, A100", where="1 core, 1 GPU")
    assert verdict(tmp_path, on_gpu, *fast, *gpu).verdict == "agrees"


def test_scores_are_compared_by_ranks(tmp_path: Path) -> None:
    test = {"kind": "more", "measure": "final_score", "this": LAZY | ON_CPU, "than": {"execution": "eager"}}
    low = [each | {"final_score": 0.0 + number} for number, each in enumerate(runs("torch", "eager", *[10.0] * 5))]
    high = [each | {"final_score": 1e5 + number} for number, each in enumerate(runs("torch", "lazy", *[10.0] * 5))]
    found = verdict(tmp_path, test, *low, *high)
    assert found.verdict == "agrees"
    assert (
        "PyTorch eager on CPU has a median of 2 (0 to 4, at 94 %)" in found.measured and "p = 0.0079" in found.measured
    )
    swapped = [each | {"execution": "eager" if each["execution"] == "lazy" else "lazy"} for each in [*low, *high]]
    assert verdict(tmp_path, test, *swapped).verdict == "contradicted"
    few = verdict(tmp_path, test, *low[:3], *high[:3])
    assert (
        few.verdict == "cannot be tested here"
        and "there are too few runs to show a difference: the minimum is 4 each" in few.measured
    )


MACHINE = {"kind": "less", "measure": "machine_cpu", "this": LAZY | ON_CPU, "than": {"execution": "eager"}}


def test_a_measure_of_the_machine_needs_the_machine_alone(tmp_path: Path) -> None:
    lazy = runs("torch", "lazy", *FAST, machine_cpu_percent=46.0)
    eager = runs("torch", "eager", *SLOW)
    assert verdict(tmp_path, MACHINE, *lazy, *eager).verdict == "agrees"
    eager[0]["shared"] = True
    found = verdict(tmp_path, MACHINE, *lazy, *eager, instead="memory")
    assert (found.verdict, found.measured) == (
        "cannot be tested here", "Not tested: two cells ran on one machine at the same time.",
    )  # fmt: skip
    assert found.beside.startswith("With substitutes (the job's own RAM for the machine's): agrees.")
    eager[0]["shared"] = False
    eager[1]["machine_cpu_percent"] = 60.0
    found = verdict(tmp_path, MACHINE, *lazy, *eager)
    assert found.measured == "Not tested: other programs ran on the machine at that time."


@pytest.mark.parametrize("measure", ["machine_cpu", "machine_memory", "cpu"])
def test_what_a_run_does_before_training_decides_nothing(tmp_path: Path, measure: str) -> None:
    """Imports of one framework take all of the machine; then both train in the same way."""
    rows, samples = [], []
    for framework, busy in (("torch", 40.0), ("numpy", 100.0)):
        for run in runs(framework, "lazy", *FAST):
            key = {"plan": "p", "cell": f"{framework} {run['seed']}", "attempt": "a"}
            whole = (busy + 40) / 2
            rows.append(
                run | key | {"setup_time": 4.0, "compile_time": 0.0, "evaluation_time": 0.0, "resumed_step": float("nan"),
                             "records": 1, "steps": 100.0, "machine_cpu_percent": whole, "machine_memory_percent": whole / 5,
                             "cpu_seconds": 2 * run["wall_time"] * whole / 100, "cpu_utilisation": 2 * whole / 100}
            )  # fmt: skip
            for time, percent in ((2.0, busy), (4.0, busy), (6.0, 40.0), (8.0, 40.0)):
                samples.append(
                    key | {"rank": 0, "time": time, "unix_time": time, "machine_cpu_percent": percent, "pss": 1e8,
                           "machine_memory_percent": percent / 5, "cpu_seconds": min(time, 4) * busy / 40 + max(time - 4, 0)}
                )  # fmt: skip
    episodes = pd.DataFrame(columns=["plan", "cell", "attempt", "name", "kind", "time", "value", "began", "seconds"])
    measured = with_integrals(pd.DataFrame(rows), episodes, pd.DataFrame(samples))
    more = {"kind": "more", "measure": measure, "this": {"framework": "numpy", "execution": "lazy", **ON_CPU}, "than": {"framework": "torch"}}  # fmt: skip
    judged = [{str(name): value for name, value in row.items()} for row in measured.to_dict("records")]
    found = verdict(tmp_path, more, *judged)
    assert (found.verdict, found.tested) == ("no difference shown", 1)
    assert "NumPy lazy on CPU has 1 (" in found.measured


def test_a_stand_in_is_shown_and_decides_nothing(tmp_path: Path) -> None:
    test = {"kind": "less", "measure": "training_time", "this": LAZY | {"place": "GPU"}, "than": {"place": "CPU"}}
    rows = runs("torch", "lazy", *SLOW)
    ranks = runs("torch", "lazy", *FAST, parallelism="horovod", tasks=2, where="2 × 1 core, horovod")
    found = verdict(tmp_path, test, *rows, *ranks)
    assert (found.verdict, found.measured) == ("cannot be tested here", "Not tested: no run on GPU.")
    assert found.beside.startswith(
        "With substitutes (2 × 1 core, horovod for GPU): agrees. Training time: PyTorch lazy"
    )
    assert not verdict(tmp_path, test, *rows, *ranks, stand_ins=False).beside
    real = runs("torch", "lazy", *SLOW, gpus=1, where="1 core, 1 GPU")
    found = verdict(tmp_path, test, *rows, *ranks, *real)
    assert (found.verdict, found.beside) == ("no difference shown", "")


def test_a_place_may_mean_a_study_and_what_its_axes_set(tmp_path: Path) -> None:
    star, alone = ({"device": "cpu", "study": "s", "settings": {"topology": name}} for name in ("star", "alone"))
    book = PAPER | {"places": {"star": star, "alone": alone}, "stand_ins": {"star": alone | {"study": "t"}}}
    test = {"kind": "less", "measure": "training_time", "this": LAZY | {"place": "star"}, "than": {"place": "alone"}}
    claim = {"id": "c", "text": "A claim.", "where": "Results", "shown_by": test}
    read = read_claims(read_document(write_yaml(tmp_path / "p.yaml", book | {"claims": [claim]})))

    def rows(study: str, topology: str, times: tuple[float, ...]) -> list[dict[str, Any]]:
        config = json.dumps({"topology": topology, "actors": 2})
        return runs("torch", "lazy", *times, study=study, config=config, what=f"{topology} of {study}")

    both = [*rows("s", "star", FAST), *rows("s", "alone", SLOW)]
    assert judge(read, pd.DataFrame(both), "s", None)[0].verdict == "agrees"
    # The other study's runs are none of this place's; they are shown as its substitute.
    (other,) = judge(read, pd.DataFrame([*rows("t", "alone", FAST), *rows("s", "alone", SLOW)]), "s", None)
    assert other.measured == "Not tested: no run on star."
    assert other.beside.startswith("With substitutes (alone of t for star): agrees.")


def test_configurations_that_a_place_does_not_tell_apart(tmp_path: Path) -> None:
    rows = [*runs("torch", "lazy", *FAST), *runs("torch", "lazy", *FAST, where="4 cores")]
    found = verdict(tmp_path, LESS, *rows, *runs("torch", "eager", *SLOW))
    assert found.measured == "Not tested: PyTorch lazy on CPU means 2 configurations of this study."


def test_each_cluster_has_its_own_verdict(tmp_path: Path) -> None:
    rows = [*runs("torch", "lazy", *FAST), *runs("torch", "eager", *SLOW)]
    other = [*runs("torch", "lazy", *SLOW, cluster="d"), *runs("torch", "eager", *FAST, cluster="d")]
    claims(tmp_path, LESS)
    book = read_claims(read_document(tmp_path / "jobs/claims/short-paper.yaml"))
    found = judge(book, pd.DataFrame([*rows, *other]), "s", None)
    assert [(each.cluster, each.verdict) for each in found] == [("c", "agrees"), ("d", "contradicted")]


def test_faults_of_a_file_have_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "paper: p\ntitle: P\nframeworks: {torch: PyTorch}\nexecutions: [eager]\nplaces:\n  CPU: {device: cpu}\n"
        "claims:\n  - {id: a, text: A, where: B, shown_by: {kind: less, measure: training_time, this: {place: CPUS}, than: {}}}\n"
        "  - {id: a, text: A, where: B, shown_by: {kind: ranking, measure: wall_time, order: [torch, troch]}}\n"
    )
    with pytest.raises(SpecError) as caught:
        read_claims(read_document(file))
    assert [each.removeprefix(str(tmp_path)) for each in caught.value.problems] == [
        "/p.yaml:8: claims.0.shown_by.this.place: no place 'CPUS' in this file; did you mean 'CPU'?",
        "/p.yaml:9: claims.1.id: 'a' is the id of an earlier claim: choose another",
        "/p.yaml:9: claims.1.shown_by.order: no framework 'troch' in this file; did you mean 'torch'?",
    ]
    file.write_text(file.read_text().replace("kind: less", "kind: lesser").replace("text: A,", "texts: A,", 1))
    with pytest.raises(SpecError) as caught:
        read_claims(read_document(file))
    assert ":8: claims.0.texts: unknown key; did you mean 'text'?" in str(caught.value)


@pytest.mark.parametrize("name", Library().files("jobs/claims", ".yaml"))
def test_the_packaged_claims(name: str) -> None:
    assert Library().claims(name).paper == name
    assert not [each for each in Library().files("jobs", ".yaml") if each.startswith("claims/")]


def test_the_report_holds_the_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = {"kind": "fails", "configurations": [{"framework": "numpy", "execution": "eager", **ON_CPU}]}
    claims(tmp_path, fails, quote="<b>too slow</b>")
    plan = planned(tmp_path / "p", dqn_study(paper="short-paper", axes={"framework": ["numpy"], "execution": ["eager"]}, seeds=5))  # fmt: skip
    for cell in cells_of(plan):
        write_record(plan, cell)
    collect([plan], tmp_path / "d", no_slurm())
    monkeypatch.chdir(tmp_path)
    page = write_report(tmp_path / "d", None, tmp_path / "r", ()).html.read_text()
    assert (
        '<h3 id="study-short-claims">The paper says, we measured</h3>' in page
        and "<strong>contradicted</strong>" in page
    )
    assert (
        "0 agrees, 0 agrees in direction, 1 contradicted, 0 no difference shown, 0 not shown, 0 cannot be tested here."
        in page
    )
    assert "&lt;b&gt;too slow&lt;/b&gt;" in page and "Claims that these runs cannot test" not in page
    claims(tmp_path, {"kind": "untestable", "why": "it is an opinion"})
    folded = write_report(tmp_path / "d", None, tmp_path / "u", ()).html.read_text()
    assert "it is an opinion" in folded.partition("<details><summary>Claims that these runs cannot test")[2]
    assert "it is an opinion" not in folded.partition("<details><summary>Claims that these runs cannot test")[0]
    claims(tmp_path, fails, quote="<b>too slow</b>")
    table = pd.read_csv(tmp_path / "r/claims.csv")
    assert table[["study", "claim", "verdict", "tested"]].to_numpy().tolist() == [["short", "c0", "contradicted", 1]]
    monkeypatch.chdir("/")
    other = write_report(tmp_path / "d", None, tmp_path / "q", ())
    assert "The paper says" not in other.html.read_text()
    assert not (tmp_path / "q/claims.csv").exists()


def test_times_on_more_cores_than_the_machine_has_are_not_judged(tmp_path: Path) -> None:
    test = {"kind": "less", "measure": "training_time", "this": LAZY | ON_CPU, "than": {"execution": "eager"}}
    lazy, eager = runs("torch", "lazy", *FAST), runs("torch", "eager", *SLOW)
    assert verdict(tmp_path, test, *lazy, *eager).verdict == "agrees"
    eager[0]["crowded"] = True
    found = verdict(tmp_path, test, *lazy, *eager)
    assert (found.verdict, found.measured) == (
        "cannot be tested here", "Not tested: on CPU, runs had more cores to use than the machine has (2).",
    )  # fmt: skip
    assert verdict(tmp_path, test | {"measure": "memory"}, *lazy, *eager).verdict == "agrees"
