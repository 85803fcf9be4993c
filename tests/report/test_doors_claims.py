"""The claims of the article on Doors: each names cells of its studies, and is judged by them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pandas as pd
import pytest

from hpcrl.report.claims import judge
from hpcrl.spec.checks import combinations
from hpcrl.spec.library import Library
from tests.report.test_claims import runs

CLAIMS = Library().claims("doors-jax-environments")


def test_each_place_has_cells_in_its_studies() -> None:
    for places in (CLAIMS.places, CLAIMS.stand_ins):
        for name, place in places.items():
            assert place.study
            for each in place.study:
                cells = [values for values, _ in combinations(Library().study(each), {*place.settings, "framework"})]
                meant = [values for values in cells if place.has(values)]
                assert meant, name
                if each == "doors-dqn-published":  # one configuration of each framework, or the claim cannot be judged
                    assert len(meant) == len({values["framework"] for values in meant}), name
    assert set(CLAIMS.stand_ins) == {name for name, place in CLAIMS.places.items() if place.device == "gpu"}


def stepped(
    framework: str, execution: str, seconds: float, stepping: str | None, environments: int, workers: str | None = None
) -> list[dict[str, Any]]:
    """Return three runs of the study that only steps."""
    given = {"environments": environments, "stepping": stepping, "workers": workers}
    config = json.dumps({name: value for name, value in given.items() if value})
    what = f"{framework} {execution} {stepping} {workers} {environments}"
    times = [seconds, 1.01 * seconds, 0.99 * seconds]
    stepped = runs(
        framework, execution, *times, study="doors-stepping", config=config, what=what, workload="random_policy"
    )
    # Training also draws the actions: it is not what the article timed.
    return [row | {"stepping_time": row["training_time"], "training_time": 9.0} for row in stepped]


def test_the_claims_are_judged_by_the_studies() -> None:
    rows = [
        *stepped("numpy", "eager", 3.0, "sync", 481),
        *stepped("numpy", "eager", 6.0, "processes", 481, "environments"),
        *stepped("numpy", "eager", 5.0, "pipes", 481, "environments"),
        # With as many processes as cores it would be the other way round: that is not the article's.
        *stepped("numpy", "eager", 1.0, "processes", 481),
        *stepped("numpy", "eager", 2.0, "pipes", 481),
        *stepped("jax", "lazy", 1.5, "compiled", 481),
        *stepped("jax", "lazy", 1.0, "compiled", 1),
        *stepped("jax", "fused", 0.03, None, 481),
    ]
    found = {each.claim: each for each in judge(CLAIMS, pd.DataFrame(rows), "doors-stepping", None)}
    assert found["sync-481"].verdict == "agrees"
    assert found["shared-memory"].verdict == "contradicted"
    # Nothing ran on a GPU: cores stand in for it.
    assert found["whole-loop"].verdict == "cannot be tested here"
    for name, shown in (("jax-any-number", "1.5"), ("whole-loop", "0.03")):
        assert shown in str(found[name]), name
    assert found["jax-ten-times"].verdict == "cannot be tested here"


@pytest.mark.parametrize("name", ["doors-dqn", "doors-dqn-published"])
def test_the_dqn_studies_change_one_thing_at_a_time(name: str) -> None:
    study = Library().study(name)
    per_iteration = ("train_interval", "target_interval", "learning_starts")
    keys = {"framework", "execution", "stepping", "environments", "updates", "gamma", *per_iteration}
    cells = [{key: values[key] for key in keys & set(values)} for values, _ in combinations(study, keys)]
    if name == "doors-dqn":
        # Equal steps and updates: only what is compared differs.
        assert [cell for cell in cells if "gamma" in cell] == [
            {"framework": "jax", "execution": "fused", "gamma": 0.99}
        ]
        plain = [cell for cell in cells if "updates" not in cell and "gamma" not in cell]
        assert len(plain) == 2 * 3 * 5 + 1
        assert {key for cell in plain for key in cell} == {"framework", "execution", "stepping", "environments"}
        # The updates of an interval, where only they differ from a cell of the others.
        for cell in cells:
            if "updates" in cell:
                assert {key: value for key, value in cell.items() if key != "updates"} in plain
                assert cell["updates"] in (32, 256)
        return
    # An iteration is a step of all environments, and the article counts in iterations.
    assert {tuple(cell[key] / cell["environments"] for key in per_iteration) for cell in cells} == {(10, 200, 100)}
    steps = study.workload.hyperparameters["total_steps"]
    # As many updates in all, to 2 %, until the last stage has 0.4 of them: the published scripts take 8 in an interval.
    chain = [
        {
            **cell,
            "updates": round((steps - cell["learning_starts"]) / cell["train_interval"] * cell["updates"] / 780, 1),
        }
        for cell in cells[:5]
    ]
    assert [cell["updates"] for cell in chain] == [1, 1, 1, 1, 0.4]
    compared = keys - {*per_iteration, "gamma"}
    changes = [{key for key in compared if one[key] != other[key]} for one, other in itertools.pairwise(chain)]
    assert changes == [{"framework", "execution"}, {"stepping"}, {"environments"}, {"updates"}]
    # All four cells of framework and environment.
    four = {
        (cell["framework"], cell["stepping"]): cell
        for cell in cells
        if cell["environments"] == 64 and cell["stepping"] in ("sync", "compiled")
    }
    assert len(four) == 4
    assert len({tuple(cell[key] for key in ("updates", *per_iteration)) for cell in four.values()}) == 1
