from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.spec.billing import evaluate
from hpcrl.spec.quantities import format_memory, format_time, parse_memory, parse_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30:00", 1800),
        ("04:00:00", 14400),
        ("1-00:00:00", 86400),
        ("2-12", 2 * 86400 + 12 * 3600),
        ("100:00:00", 360000),
    ],
)
def test_slurm_times(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("4 hours", "04:00:00"),
        ("90 min", "01:30:00"),
        (60, "01:00:00"),
        ("soon", "04:00:00"),
        ("60", "01:00:00"),
        (True, ""),
    ],
)
def test_no_slurm_time(value: object, hint: str) -> None:
    with pytest.raises(ValueError, match=f"is not a Slurm time; try .*{hint}"):
        parse_time(value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("99:99:99", "4-04:40:39"), ("1-24", "2-00:00:00"), ("10:60", "00:11:00"), ("1-01:60", "1-02:00:00")],
)
def test_a_part_of_a_time_that_is_too_large(text: str, hint: str) -> None:
    with pytest.raises(
        ValueError, match=f"the maximum is 23 for hours after days, 59 for minutes and seconds; try {hint}"
    ):
        parse_time(text)


@given(st.integers(1, 10**7))
def test_times_round_trip(seconds: int) -> None:
    assert parse_time(format_time(seconds)) == seconds


@given(st.integers(1, 10**9))
def test_memories_round_trip(mib: int) -> None:
    assert parse_memory(format_memory(mib)) == mib


@pytest.mark.parametrize("value", ["4", "4 gigs", 4, None, "-1G", 0, 1e30, True])
def test_no_memory(value: object) -> None:
    with pytest.raises(ValueError, match="is not a memory with a unit") as told:
        parse_memory(value)
    assert str(told.value).endswith("try 4M (Slurm's own unit) or 4G" if value == 4 else "try 4G")


@pytest.mark.parametrize("value", ["0G", "0M", "1K"])
def test_less_than_the_least_memory(value: str) -> None:
    with pytest.raises(ValueError, match=f"expected a memory of at least 1 MiB, such as 64M, got {value}"):
        parse_memory(value)


def test_sol_bills_as_its_page_says() -> None:
    # One A100 with one core and 8 GiB for two hours: (1 + 8/4 + 25) * 2.
    names = {"cores": 1, "memory_gib": 8, "gpu_a30": 0, "gpu_a100": 1, "hours": 2}
    assert evaluate("(cores + memory_gib / 4 + 20 * gpu_a30 + 25 * gpu_a100) * hours", names) == 56
    assert evaluate("max(cores, ceil(memory_gib / 2)) * hours", names) == 8
    assert evaluate("-1 + 2", {}) == 1


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "cores.real", "[1]", "1 if 1 else 2", "'a'", "True", "1 +", "f(1)", "1 / 0", "cors", "max()"],
)
def test_nothing_but_arithmetic(text: str) -> None:
    with pytest.raises(ValueError):
        evaluate(text, {"cores": 1.0})
