from __future__ import annotations

import os

import pytest

from hpcrl.telemetry.memory import PeakMemory

MIB = 2**20
PAGE = os.sysconf("SC_PAGE_SIZE")


def sizes(*each: tuple[int, int]) -> dict[int, tuple[int, int]]:
    return {pid: (now * MIB, most * MIB) for pid, (now, most) in enumerate(each)}


def test_shared_pages_count_once() -> None:
    memory = PeakMemory()
    assert memory.take(sizes((410, 410), (410, 410), (410, 410)), 430.0 * MIB) == 430 * MIB


def test_a_spike_between_two_readings_is_in_the_peak() -> None:
    memory = PeakMemory()
    memory.take(sizes((10, 10), (50, 50)), 60.0 * MIB)
    assert memory.take(sizes((10, 810), (50, 50)), 60.0 * MIB) == 860 * MIB


def test_an_old_spike_is_not_added_to_a_later_one() -> None:
    memory = PeakMemory()
    memory.take(sizes((10, 810), (10, 10)), 20.0 * MIB)
    assert memory.take(sizes((10, 810), (500, 500)), 510.0 * MIB) == 820 * MIB


def test_between_full_readings_one_process_keeps_what_it_shares() -> None:
    memory = PeakMemory()
    memory.take(sizes((100, 100)), 90.0 * MIB)
    assert memory.take(sizes((200, 200)), None) == 190 * MIB


def test_between_full_readings_a_growth_of_several_may_be_shared() -> None:
    memory = PeakMemory()
    memory.take(sizes((400, 400)), 400.0 * MIB)
    assert memory.take(sizes((400, 400), (400, 400), (400, 400)), None) == 400 * MIB


def test_nothing_is_said_before_a_full_reading() -> None:
    memory = PeakMemory()
    assert memory.take(sizes((100, 100)), None) is None


@pytest.mark.parametrize(
    ("processes", "pages", "due"), [(2, 2 * MIB // PAGE, True), (2, 100, False), (1, 2 * MIB // PAGE, False)]
)
def test_forked_processes_that_write_are_read_again(processes: int, pages: int, due: bool) -> None:
    memory = PeakMemory()
    some = sizes(*[(100, 100)] * processes)
    memory.take(some, 100.0 * MIB)
    assert memory.may_part(some, pages) is due
    assert not memory.grows(some)
    assert memory.grows(sizes(*[(102, 102)] * processes))
