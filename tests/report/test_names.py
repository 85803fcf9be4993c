from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcrl.collect.merge import collect
from hpcrl.report.names import base, names_of
from tests.builders import cells_of, command_study, planned, write_record
from tests.collect.gathering import no_slurm
from tests.conftest import Shown

PARTS = {"double": True, "dueling": True, "n_step": 10, "noisy": True, "prioritized": True}
RAINBOW = {"algorithm": "rainbow", "framework": "jax", **PARTS}
ABLATION: list[dict[str, Any]] = [
    RAINBOW,
    RAINBOW | {"double": False},
    RAINBOW | {"dueling": False},
    RAINBOW | {"n_step": 1},
    RAINBOW | {"noisy": False},
    RAINBOW | {"prioritized": False, "seed": 1},
    RAINBOW | {"prioritized": False, "seed": 2},
    RAINBOW | {"double": False, "dueling": False},
]
TOLD = "double true, dueling true, n_step 10, noisy true, prioritized true"


def test_an_ablation_is_named_by_what_differs() -> None:
    assert names_of(ABLATION) == [
        "Rainbow JAX base",
        "Rainbow JAX double false",
        "Rainbow JAX dueling false",
        "Rainbow JAX n_step 1",
        "Rainbow JAX noisy false",
        "Rainbow JAX prioritized false",
        "Rainbow JAX prioritized false",
        "Rainbow JAX double false dueling false",
    ]
    assert base(ABLATION) == f"“base” has {TOLD}; other names tell what differs from “base”."


def test_seeds_do_not_make_a_value_usual() -> None:
    seeds = [RAINBOW | {"double": False, "dueling": False, "seed": seed} for seed in range(20)]
    assert names_of([*ABLATION, *seeds])[0] == "Rainbow JAX base"


def test_few_settings_and_those_without_a_usual_value_are_told() -> None:
    few = [{key: value for key, value in config.items() if key not in ("noisy", "prioritized")} for config in ABLATION]
    assert names_of(few)[:2] == [
        "Rainbow JAX double true dueling true n_step 10",
        "Rainbow JAX double false dueling true n_step 10",
    ]
    assert base(few) == ""
    rates = [config | {"rate": rate} for config in ABLATION for rate in (1e-3, 1e-4)]
    assert names_of(rates)[:3] == [
        "Rainbow JAX rate 0.001",
        "Rainbow JAX rate 0.0001",
        "Rainbow JAX double false rate 0.001",
    ]
    assert len(set(names_of(rates))) == 14
    halves = [RAINBOW | dict.fromkeys(PARTS, True), RAINBOW | dict.fromkeys(PARTS, False)]
    assert base(halves) == ""


def test_to_lack_a_usual_setting_and_to_have_an_unusual_one_is_told() -> None:
    without = {key: value for key, value in RAINBOW.items() if key != "noisy"}
    configs = [*ABLATION, without, RAINBOW | {"clip": 0.5}]
    assert names_of(configs)[-2:] == ["Rainbow JAX no noisy", "Rainbow JAX clip 0.5"]
    assert "has double true, dueling true, n_step 10, no clip, noisy true, prioritized true;" in base(configs)


def test_each_algorithm_has_a_base_of_its_own() -> None:
    dqn = [config | {"algorithm": "dqn", "noisy": not config["noisy"]} for config in ABLATION]
    assert names_of([*ABLATION, *dqn])[len(ABLATION)] == "DQN JAX base"
    assert f"“base” of Rainbow has {TOLD};" in base([*ABLATION, *dqn])
    assert "“base” of DQN has double true, dueling true, n_step 10, noisy false, prioritized true;" in base(
        [*ABLATION, *dqn]
    )


def test_the_opposite_of_the_usual_values_has_a_name() -> None:
    single = ABLATION[:-1]
    none = RAINBOW | {"n_step": 3} | dict.fromkeys(("double", "dueling", "noisy", "prioritized"), False)
    assert names_of([*single, none, none | {"seed": 2}])[-2:] == ["Rainbow JAX nothing of base"] * 2
    assert base([*single, none]).endswith(
        f"has {TOLD}, “nothing of base” has double false, dueling false, n_step 3, noisy false, prioritized false; "
        "other names tell what differs from “base”."
    )
    two = [*single, single[0] | {"noisy": None}, none, none | {"n_step": 5}]
    assert names_of(two)[-1] == "Rainbow JAX double false dueling false n_step 5 noisy false prioritized false"
    slow = [config | {"rate": 1e-3} for config in (*single, none)]
    once = names_of([*slow, *(config | {"rate": 1e-4} for config in single)])
    assert (once[0], once[len(single)]) == ("Rainbow JAX rate 0.001", "Rainbow JAX nothing of base rate 0.001")
    assert len(set(once)) == 2 * len(single) - 1  # one of them has two seeds
    rates = [config | {"rate": rate} for config in (*single, none) for rate in (1e-3, 1e-4)]
    assert (
        names_of(rates)[-1]
        == "Rainbow JAX double false dueling false n_step 3 noisy false prioritized false rate 0.0001"
    )


def test_the_page_says_what_base_is(tmp_path: Path, hpcrl: Callable[..., Shown]) -> None:
    on = dict.fromkeys(("a", "b", "c", "d"), "on")
    parts = [on, *({**on, key: "off"} for key in on)]
    plan = planned(tmp_path / "p", command_study(["true"], axes={"parts": parts}, seeds=1))
    for cell in cells_of(plan):
        write_record(plan, cell)
    collect([plan], tmp_path / "d", no_slurm())
    assert hpcrl("report", tmp_path / "d", "-o", tmp_path / "r", "--figures", "none").code == 0
    page = (tmp_path / "r/report.html").read_text()
    assert "d (off, on). “base” has a on, b on, c on, d on; other names tell what differs from “base”." in page


def test_two_configurations_have_two_names_and_one_has_one() -> None:
    draw = random.Random(1)
    for _ in range(300):
        keys = [f"k{number}" for number in range(draw.randint(1, 7))]
        odds = draw.choice([1, 4, 12])  # for the usual value
        configs = []
        for _ in range(draw.randint(1, 30)):
            config = {key: draw.choice([None, False, 2, *[True] * odds]) for key in keys}
            configs.append({key: value for key, value in config.items() if value is not None})
        if draw.random() < 0.5:
            configs = [config | {"algorithm": draw.choice(["dqn", "ppo"])} for config in configs]
        names = names_of([config | {"seed": draw.randint(1, 3)} for config in configs])
        known = {json.dumps(config, sort_keys=True): name for config, name in zip(configs, names, strict=True)}
        assert len(set(known.values())) == len(known)
        assert names == [known[json.dumps(config, sort_keys=True)] for config in configs]


def test_settings_that_go_together_are_one_in_names() -> None:
    few = {"framework": "jax", "environments": 64, "train_interval": 640, "updates": 1}
    many = {"framework": "jax", "environments": 1024, "train_interval": 10240}
    configs = [few, few | {"framework": "torch"}, many | {"updates": 20}, many | {"updates": 8}]
    assert names_of(configs) == [
        "JAX environments 64 updates 1",
        "PyTorch environments 64 updates 1",
        "JAX environments 1024 updates 20",
        "JAX environments 1024 updates 8",
    ]
    assert base(configs) == "Each value of environments goes with one of train_interval, which names leave out."
    # Where each configuration has a value of its own, as points that were drawn, nothing goes with anything.
    drawn = [{"gamma": 0.9 + number / 100, "learning_rate": number / 1000} for number in (1, 2, 3)]
    assert names_of(drawn)[0] == "gamma 0.91 learning_rate 0.001"
