"""The claims of the paper on MPI: each place is one configuration of a study, and each has one at equal work."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pandas as pd
import pytest

from hpcrl.report.claims import Verdict, judge
from hpcrl.report.figures.papers.mpi_deep_q_learning import PRINTED
from hpcrl.spec.checks import combinations
from hpcrl.spec.claim_tests import Differs
from hpcrl.spec.library import Library
from tests.report.test_claims import runs

CLAIMS = Library().claims("mpi-deep-q-learning")


@pytest.mark.parametrize("kind", ["places", "stand_ins"])
def test_each_place_is_one_configuration_of_its_study(kind: str) -> None:
    for name, place in getattr(CLAIMS, kind).items():
        (study,) = place.study or ()
        cells = [values for values, _ in combinations(Library().study(study), {*place.settings, "framework"})]
        assert len([values for values in cells if place.has(values)]) == 1, name


def test_each_published_run_has_one_at_equal_work() -> None:
    published = {name for name, place in CLAIMS.places.items() if "published" in str(place.study)}
    assert set(CLAIMS.stand_ins) == published
    for name in published:
        place, other = CLAIMS.places[name], CLAIMS.stand_ins[name]
        assert other.settings == place.settings, name
        assert [study.replace("-published", "") for study in place.study or ()] == list(other.study or ()), name


def took(study: str, topology: str, actors: int, seconds: float, evaluating: float = 0.0) -> list[dict[str, Any]]:
    """Return three runs of a study."""
    config = json.dumps({"topology": topology} | ({"actors": actors} if topology != "sequential" else {}))
    times = [seconds, 1.01 * seconds, 0.99 * seconds]
    what = f"{topology} {actors}"
    return runs("torch", "eager", *times, study=study, config=config, what=what, evaluation_time=evaluating)


def judged(study: str, *rows: list[dict[str, Any]]) -> dict[str, Verdict]:
    return {each.claim: each for each in judge(CLAIMS, pd.DataFrame([*itertools.chain(*rows)]), study, None)}


def test_runs_at_equal_work_are_compared_with_their_evaluations() -> None:
    """Without them the learner would be a hundred times as fast, because its actors explored while it evaluated."""
    alone, four = took("mpi-dqn", "sequential", 1, 10.0, 100.0), took("mpi-dqn", "collective", 4, 0.1, 109.0)
    apart = took("mpi-dqn", "asynchronous", 4, 0.1, 50.0)
    found = judged("mpi-dqn", alone, four, apart)
    assert found["cartpole-four-actors"].verdict == "cannot be tested here"
    assert (
        "Training time with evaluations: PyTorch eager on CartPole with four actors has 0.99"
        in found["cartpole-four-actors"].beside
    )
    assert found["asynchronous-actors-are-faster"].verdict == "agrees"
    assert "0.459" in found["asynchronous-actors-are-faster"].measured


def test_published_runs_are_compared_by_the_time_of_training() -> None:
    study = "mpi-dqn-published-lunar-lander"
    times = {1: 369.43, 2: 179.68, 3: 130.31, 4: 200.0}
    found = judged(study, *(took(study, "collective", actors, seconds, 1000.0) for actors, seconds in times.items()))
    assert found["lunar-lander-two-actors-beat-one"].verdict == "agrees"
    assert found["lunar-lander-three-actors-beat-two"].verdict == "agrees"
    assert found["lunar-lander-four-actors-beat-three"].verdict == "contradicted"


def test_the_ratios_are_those_of_the_printed_times() -> None:
    kinds = {
        name: (place.settings["topology"], place.settings.get("actors", 1)) for name, place in CLAIMS.places.items()
    }
    checked = 0
    for claim in CLAIMS.claims:
        test = claim.shown_by
        if not isinstance(test, Differs) or test.ratio is None:
            continue
        (this,), (than,) = test.this.place or (), test.than.place or ()
        (printed,) = (times for name, times in PRINTED.items() if name in this)
        assert test.ratio == pytest.approx(printed[kinds[this]] / printed[kinds[than]], abs=6e-4), claim.id
        checked += 1
    assert checked == 14
