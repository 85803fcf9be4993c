from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from hpcrl.report.axes import values
from hpcrl.report.design import PHASES, colours, display, in_short, natural


def test_a_framework_has_one_name_and_one_colour_whatever_is_drawn_beside_it() -> None:
    assert [display(name) for name in ("torch", "tensorflow", "jax", "mxnet", "numpy")] == [
        "PyTorch", "TensorFlow", "JAX", "MXNet", "NumPy",
    ]  # fmt: skip
    whole = colours(["PyTorch", "TensorFlow", "JAX", "MXNet", "NumPy"])
    assert len(set(whole.values())) == 5
    for some in (["JAX"], ["NumPy", "JAX"], ["MXNet", "PyTorch", "mine"]):
        assert {name: hue for name, hue in colours(some).items() if name in whole} == {
            name: whole[name] for name in some if name in whole
        }
    assert colours(["JAX", "mine"])["mine"] not in whole["JAX"]


def test_other_configurations_have_the_colours_of_their_order_not_of_their_arrival() -> None:
    names = [f"variant {number}" for number in range(7)]
    mixed = random.Random(0).sample(names, len(names))
    assert colours(names) == colours(mixed)
    assert len(set(colours(names).values())) == 7


def test_no_two_phases_look_alike() -> None:
    """By the distance of colours that weights red by its mean ("redmean"): black and white are 765 apart."""

    def apart(one: str, other: str) -> float:
        first, second = (np.array([int(text[place : place + 2], 16) for place in (1, 3, 5)]) for text in (one, other))
        red = (first[0] + second[0]) / 512
        return float(np.sqrt(np.array([2 + red, 4, 3 - red]) @ (first - second) ** 2))

    assert min(apart(one, other) for (_, one), (_, other) in combinations(PHASES.values(), 2)) > 100


def test_natural_order() -> None:
    names = ["10 cores", "2 cores", "1 core", "lr 0.01", "lr 0.001", "lr 1e-05"]
    assert sorted(names, key=natural) == ["1 core", "2 cores", "10 cores", "lr 1e-05", "lr 0.001", "lr 0.01"]
    below = ["-3", "-2.5", "0", "1", "run-2", "run-10", "x -10", "x -2", "x 1"]  # a minus, and hyphens
    assert sorted(below[::-1], key=natural) == below
    assert values(pd.Series([1, -3, 0, -2])) == ["-3", "-2", "0", "1"]
    assert values(pd.Series([2400001.5, 2400000.5])) == ["2400000.5", "2400001.5"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(30_000, "30,000"), (901.4, "901"), (46.0001, "46.0"), (5, "5"), (0.1624, "0.162"), (1e9, "1.00e+09"),
     (float("nan"), ""), (-1234.6, "-1,235"), (0.00001, "1.00e-05")],
)  # fmt: skip
def test_numbers_are_written_one_way(value: float, text: str) -> None:
    assert in_short(value) == text
