"""The fence: of any number of starts of one attempt, one takes it."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from hpcrl.errors import HpcrlError
from hpcrl.formats.attempts import (
    ATTEMPTS,
    Start,
    end_attempt,
    note_turned_away,
    read_attempts,
    read_holder,
    take_attempt,
)


def start(attempt: str = "1", restart: int = 0, key: str = "7_0", mark: str = "n1-1") -> Start:
    return Start("cell", attempt, restart, key, mark)


def take(directory: Path, which: Start) -> str | None:
    return take_attempt(directory, which, {"node": "n1", "token": "t"})


def test_one_start_takes_it_and_its_other_ranks_come_along(tmp_path: Path) -> None:
    assert take(tmp_path, start()) is None
    assert take(tmp_path, start()) is None  # another rank
    refusal = take(tmp_path, start(mark="n2-5"))
    assert refusal == "attempt 1 of cell cell runs or ran as job 7_0 on n1: this start does nothing"
    assert take(tmp_path, start(key="8_0", mark="n2-6")) is not None
    assert read_holder(tmp_path, "cell", 1)["start"] == "n1-1"
    assert take(tmp_path, start("2", key="8_0")) is None


def _race(directory: str, mark: str, go: object) -> None:
    while time.time() < go:  # type: ignore[operator]
        pass
    refusals = [take_attempt(Path(directory), Start(f"c{cell}", "1", 0, mark, mark), {}) for cell in range(200)]
    Path(directory, f"won-{mark}").write_text(json.dumps([each is None for each in refusals]))


def test_of_many_at_once_exactly_one_wins(tmp_path: Path) -> None:
    go = time.time() + 0.5
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_race, args=(str(tmp_path), f"m{number}", go)) for number in range(4)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    won = [json.loads(path.read_text()) for path in tmp_path.glob("won-*")]
    assert [sum(cell) for cell in zip(*won, strict=True)] == [1] * 200


def test_a_requeue_of_the_same_job_goes_on(tmp_path: Path) -> None:
    take(tmp_path, start())
    assert take(tmp_path, start(restart=1, mark="n2-1")) is None
    assert take(tmp_path, start(restart=1, mark="n3-1")) is not None  # Slurm starts the requeued job twice
    assert take(tmp_path, start(restart=2, mark="n2-2")) is None


def test_a_requeue_of_another_job_or_of_a_completed_attempt_does_not(tmp_path: Path) -> None:
    take(tmp_path, start())
    assert "was taken by job 7_0" in str(take(tmp_path, start(restart=1, key="8_0", mark="x")))
    end_attempt(tmp_path, start(), "completed")
    assert "has completed" in str(take(tmp_path, start(restart=1, mark="y")))


def test_a_job_that_was_requeued_before_its_first_start_begins(tmp_path: Path) -> None:
    assert take(tmp_path, start(restart=2)) is None


def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert take(tmp_path, start()) is None
    assert take(tmp_path, start(mark="b")) is not None


def test_an_answer_that_got_lost_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS: link() was done, its answer lost, and the repeated request says that the name exists."""
    link = os.link

    def twice(source: str, target: Path) -> None:
        link(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", twice)
    assert take(tmp_path, start()) is None


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / ATTEMPTS).write_text("a file")
    with pytest.raises(HpcrlError, match=r"the attempt cannot be taken: .*: nothing was run"):
        take(tmp_path, start())


@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "large", "text"])
def test_whatever_stands_in_its_place_the_attempt_is_taken_and_nothing_waits(tmp_path: Path, kind: str) -> None:
    (tmp_path / ATTEMPTS).mkdir()
    place = tmp_path / ATTEMPTS / start().name
    match kind:
        case "fifo":
            os.mkfifo(place)
        case "link":
            place.symlink_to("/dev/zero")
        case "directory":
            place.mkdir()
        case "large":
            place.write_text("[" * 10**6)
        case _:
            place.write_text('"x"')
    assert "was taken by job another job" in str(take(tmp_path, start(restart=1)))
    assert "runs or ran as job another job" in str(take(tmp_path, start()))


def test_progress_is_one_listing(tmp_path: Path) -> None:
    first, second = start(), Start("other", "2", 0, "8_1", "m")
    take(tmp_path, first)
    take(tmp_path, second)
    end_attempt(tmp_path, first, "preempted")
    take(tmp_path, start(restart=1))
    end_attempt(tmp_path, start(restart=1), "completed")
    note_turned_away(tmp_path, Start("other", "2", 0, "9_1", "node/../x"))
    byhand = Start("third", "byhand-20261122-7", 0, "byhand-20261122-7", "m")
    take(tmp_path, byhand)
    end_attempt(tmp_path, byhand, "failed")
    end_attempt(tmp_path, Start("third", "12_4", 1, "12_4", "m"), "completed")
    (tmp_path / ATTEMPTS / "nonsense").touch()
    found = read_attempts(tmp_path)
    assert found.begun == {1: {"cell"}, 2: {"other"}}
    assert found.ended == {1: {"cell": "completed"}}
    assert found.byhand == {"third": "completed"}
    assert found.turned_away == 1
    assert read_attempts(tmp_path / "nowhere").begun == {}


def test_a_rank_that_failed_outweighs_one_that_completed(tmp_path: Path) -> None:
    for outcomes in (("completed", "failed"), ("failed", "completed")):
        directory = tmp_path / outcomes[0]
        directory.mkdir()
        take_attempt(directory, start(), {})
        for outcome in outcomes:
            end_attempt(directory, start(), outcome)
        assert read_attempts(directory).ended == {1: {"cell": "failed"}}


@pytest.mark.parametrize("ranks", [[0, 1, 2], [2, 0, 1]])
def test_an_attempt_of_several_ranks_has_completed_when_all_have(tmp_path: Path, ranks: list[int]) -> None:
    """As where one is killed without a word after the first has written its footer."""
    assert take_attempt(tmp_path, start(), {}) is None
    for number, rank in enumerate(ranks):
        assert read_attempts(tmp_path).outcome("cell", 1) is None
        assert read_attempts(tmp_path).has_begun("cell", 1)
        end_attempt(tmp_path, start(), "completed", rank, 3)
        assert (read_attempts(tmp_path).outcome("cell", 1) == "completed") == (number == 2)


def test_a_rank_that_failed_outweighs_those_that_completed(tmp_path: Path) -> None:
    assert take_attempt(tmp_path, start(), {}) is None
    for rank, outcome in enumerate(["completed", "failed"]):
        end_attempt(tmp_path, start(), outcome, rank, 2)
    assert read_attempts(tmp_path).outcome("cell", 1) == "failed"


@pytest.mark.parametrize(
    ("cause", "consequence"),
    [("failed", "preempted"), ("failed", "timeout"), ("oom", "failed"), ("oom", "preempted"), ("diverged", "failed")],
)
@pytest.mark.parametrize("causes_first", [True, False])
def test_a_rank_that_failed_outweighs_those_that_it_took_along(
    tmp_path: Path, cause: str, consequence: str, causes_first: bool
) -> None:
    """The launcher sends TERM to the other ranks, so that they keep a checkpoint."""
    assert take_attempt(tmp_path, start(), {}) is None
    for outcome in (cause, consequence) if causes_first else (consequence, cause):
        end_attempt(tmp_path, start(), outcome, 0, 2)
    assert read_attempts(tmp_path).outcome("cell", 1) == cause
