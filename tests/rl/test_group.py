"""What ranks ask each other, on ranks that take turns in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcrl.errors import HpcrlError
from hpcrl.rl import checkpoint
from hpcrl.rl.distributed.agreement import any_rank, check_same_start
from hpcrl.rl.train import _common_checkpoint
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Rank


class Table:
    """Where ranks, each a thread, lay down their values and take up the mean."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.values, self.barrier = ranks, [np.zeros(0, np.float32)] * ranks, Barrier(ranks, timeout=30)

    def mean(self, rank: int, values: NDArray[np.float32]) -> NDArray[np.float32]:
        self.values[rank] = values
        self.barrier.wait()
        mean: NDArray[np.float32] = np.mean(self.values, axis=0, dtype=np.float32)
        self.barrier.wait()
        return mean


class Seat(Rank):
    def __init__(self, table: Table, rank: int) -> None:
        super().__init__(rank, table.ranks)
        self.table = table

    def mean_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return self.table.mean(self.rank, values)


def together(work: Callable[[Seat, Any], Any], each: Sequence[Any]) -> list[Any]:
    table = Table(len(each))
    with ThreadPoolExecutor(len(each)) as pool:
        return list(pool.map(work, [Seat(table, rank) for rank in range(len(each))], each))


@pytest.mark.parametrize(
    ("flags", "found"), [((False, True, False), True), ((False, False), False), ((True,) * 2, True)]
)
def test_one_rank_speaks_for_all(flags: tuple[bool, ...], found: bool) -> None:
    assert together(any_rank, flags) == [found] * len(flags)


def test_ranks_with_other_first_weights_are_told() -> None:
    first = {"w": np.arange(6, dtype=np.float32)}
    second = {"w": np.arange(6, dtype=np.float32) + np.float32(1e-6)}

    def said(seat: Seat, weights: Any) -> str:
        try:
            check_same_start(seat, weights)
        except HpcrlError as error:
            return str(error)
        return ""

    assert together(said, (first, first)) == ["", ""]
    assert any(
        "its initial weights differ from those of other ranks" in text for text in together(said, (first, second))
    )


def test_ranks_go_on_only_from_checkpoints_of_one_step(tmp_path: Any) -> None:
    def step(seat: Seat, at: int | None) -> int | None:
        file = tmp_path / f"{seat.rank}.npz"
        file.unlink(missing_ok=True)
        if at is not None:
            checkpoint.save(file, {}, {"step": at})
        found = _common_checkpoint(file, seat)
        return found[1]["step"] if found else None

    assert together(step, (40, 40)) == [40, 40]
    assert together(step, (40, 44)) == [None, None]
    assert together(step, (40, None)) == [None, None]


def test_averaging_is_a_phase_of_its_own_once_training_has_begun() -> None:
    clock = PhaseClock()
    waited = []

    class Waiting(Rank):
        def wait(self, vector: Any) -> None:
            waited.append(clock.phase)

    timed = Waiting(clock=clock)
    for phase in ("setup", "evaluate"):
        clock.switch(phase)
        timed.average_array(np.zeros(1, np.float32))
        assert (clock.counts["communicate"], clock.phase) == (0, phase)
    clock.switch("update")
    timed.average(np.zeros(1, np.float32))
    assert (clock.counts["communicate"], clock.phase) == (1, "update")
    assert waited == ["update", "communicate"]  # for the gradient, and for the mean
