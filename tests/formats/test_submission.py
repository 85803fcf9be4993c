from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.errors import UsageError
from hpcrl.formats.submission import (
    SUBMISSIONS,
    Submission,
    grant,
    read_entry,
    read_submission,
    read_submissions,
    token_of,
    write_submission,
)

TOKEN = "hpcrl-0123abcd-7-00ff00"


def made(tasks: list[tuple[int, int]], per_task: int = 1, token: str = TOKEN) -> Submission:
    number = int(token.split("-")[2])
    return Submission(token, number, "0123abcd4567", "job", "slurm", grant(tasks), cells_per_task=per_task)


@given(st.dictionaries(st.integers(0, 99_999), st.integers(1, 30), min_size=1, max_size=60), st.integers(1, 5))
def test_every_array_index_finds_its_cells(
    tmp_path_factory: pytest.TempPathFactory, tasks: dict[int, int], per_task: int
) -> None:
    directory = tmp_path_factory.mktemp("p")
    submission = made(list(tasks.items()), per_task)
    write_submission(directory, submission)
    found = []
    for index in range(submission.array_size):
        found += [read_entry(directory, TOKEN, index, slot) for slot in range(per_task)]
    assert [each for each in found if each] == sorted(tasks.items())
    assert read_entry(directory, TOKEN, submission.array_size) is None
    assert list(read_submissions(directory)) == [submission]


def test_they_are_read_in_their_order_and_nothing_else(tmp_path: Path) -> None:
    for number in (10, 2, 9):
        write_submission(tmp_path, made([(0, 1)], token=f"hpcrl-0123abcd-{number}-aaaaaa"))
    folder = tmp_path / SUBMISSIONS
    (folder / "notes.txt").write_text("mine")
    (folder / "hpcrl-0123abcd-3-bbbbbb").symlink_to("/etc/passwd")
    (folder / "hpcrl-0123abcd-4-bbbbbb").mkdir()
    assert [each.number for each in read_submissions(tmp_path)] == [2, 9, 10]


def test_the_token_ends_the_job_s_name() -> None:
    assert made([(0, 1)]).name == f"job.{TOKEN}"
    assert token_of(f"my.study-1.{TOKEN}") == TOKEN
    assert token_of("hpcrl-0123abcd-7-00ff00x") is None
    assert token_of("somebody's job") is None


@pytest.mark.parametrize("token", ["../../etc/passwd", "", "hpcrl-0123abcd-7-00ff0/", "hpcrl-x-1-aaaaaa"])
def test_what_is_no_token_opens_no_file(tmp_path: Path, token: str) -> None:
    with pytest.raises(UsageError, match="is not a submission's token"):
        read_entry(tmp_path, token, 0)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff\xfe\n", b'{"format": 1}\n', b"[1]\n", b'{"format":1,"granted":[]}']
)
def test_a_damaged_one_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SUBMISSIONS).mkdir()
    (tmp_path / SUBMISSIONS / TOKEN).write_bytes(content)
    with pytest.raises(UsageError, match="is damaged"):
        read_entry(tmp_path, TOKEN, 0)
    with pytest.raises(UsageError, match="is damaged"):
        list(read_submissions(tmp_path))


def test_a_moved_plan(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="was the plan directory moved"):
        read_entry(tmp_path, TOKEN, 0)


def test_what_a_stage_builds_is_kept_and_older_files_do_not_say_it(tmp_path: Path) -> None:
    write_submission(tmp_path, replace(made([(0, 1)]), environments=("a", "b")))
    assert read_submission(tmp_path, TOKEN).environments == ("a", "b")
    path = tmp_path / SUBMISSIONS / TOKEN
    first, _, rest = path.read_text().partition("\n")
    facts = json.loads(first)
    del facts["environments"]
    path.write_text(f"{json.dumps(facts)}\n{rest}")
    assert read_submission(tmp_path, TOKEN) == made([(0, 1)])
