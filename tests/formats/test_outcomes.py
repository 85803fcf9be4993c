"""Which rank's end is that of the whole attempt."""

from __future__ import annotations

import pytest

from hpcrl.formats.outcomes import RankEnd, cause


def end(rank: int, outcome: str, reason: str | None = None, killed: bool = False, time: float = 1.0) -> RankEnd:
    return RankEnd(rank, outcome, reason, killed, time)


def test_the_first_failure_is_the_cause_and_a_killed_rank_comes_before_all() -> None:
    learner = end(0, "failed", "an actor is gone", time=1.0)
    actor = end(1, "failed", "it broke", time=3.0)
    assert cause([learner, actor], 3) == learner._replace(reason="rank 0: an actor is gone")
    killed = actor._replace(killed=True)
    assert cause([learner, killed], 3) == killed._replace(reason="rank 1: it broke")


@pytest.mark.parametrize("outcome", ["oom", "diverged"])
def test_a_failure_with_a_name_outweighs_an_earlier_one_without(outcome: str) -> None:
    """The clocks of nodes differ, and a killed rank's end is written after the others have noticed it."""
    named = end(1, outcome, "its own", time=9.0)
    ends = [end(0, "failed", "the connection was closed", killed=True, time=4.0), named]
    assert cause(ends, 2) == named._replace(reason="rank 1: its own")


def test_a_single_rank_is_not_named() -> None:
    assert cause([end(0, "failed", "it broke")], 1) == end(0, "failed", "it broke")


def test_without_a_failure_the_worst_of_all_ranks_decides_when_all_have_ended() -> None:
    ends = [end(0, "completed"), end(1, "preempted", "ended by TERM")]
    assert cause(ends, 3) is None
    assert cause(ends, 2) == ends[1]
    assert cause([], 0) is None
