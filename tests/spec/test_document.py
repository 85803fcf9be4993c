from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcrl.errors import SpecError, UsageError
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.document import read_document, validate
from hpcrl.spec.library import Library


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def problems_of(path: Path) -> list[str]:
    with pytest.raises(SpecError) as caught:
        Library().cluster(str(path))
    return caught.value.problems


def test_every_value_knows_its_line(tmp_path: Path) -> None:
    document = read_document(write(tmp_path / "a.yaml", "a: 1\nb:\n  c: [x, y]\n"))
    assert document.data == {"a": 1, "b": {"c": ["x", "y"]}}
    assert document.origin(("b", "c", 1)).line == 3
    assert document.origin(("b", "nothing", "here")).line == 2


def test_times_stay_what_was_written(tmp_path: Path) -> None:
    document = read_document(write(tmp_path / "a.yaml", "a: 10:00:00\nb: 2026-08-04\nc: no\n"))
    assert document.data == {"a": "10:00:00", "b": "2026-08-04", "c": "no"}


BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BOMB, r"a\.yaml:\d+: expected at most 200,000 values \(each use of an alias counts\), got more"),
        ("a: " + "[" * 3000 + "]" * 3000, r"a\.yaml: is nested too deeply"),
        ("a: " + "9" * 6000, r"a\.yaml: contains a number or a date that cannot be read"),
        ("a: 2026-99-99", r"a\.yaml: contains a number or a date that cannot be read"),
        ("b: 1\na: !!python/object/apply:os.system [id]\n", r"a\.yaml:2: .*python/object"),
        ("b: 1\na: !mine {c: 1}\n", r"a\.yaml:2: the tag !mine is not supported"),
        ("b: 1\na: !mine text\n", r"a\.yaml:2: "),
    ],
)
def test_what_a_hostile_or_odd_file_holds_is_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_document(write(tmp_path / "a.yaml", text))
    assert re.search(problem, caught.value.problems[0])


def test_merge_keys_and_aliases_are_what_they_stand_for(tmp_path: Path) -> None:
    text = "base: &b {a: 1, c: 2}\nx:\n  <<: *b\n  c: 3\ny: *b\n"
    document = read_document(write(tmp_path / "a.yaml", text))
    assert document.data == {"base": {"a": 1, "c": 2}, "x": {"a": 1, "c": 3}, "y": {"a": 1, "c": 2}}
    assert document.origin(("x", "c")).line == 4
    assert document.origin(("x", "a")).line == 3
    assert document.origin(("y", "a")).line == 1


def test_all_faults_at_once_with_line_and_nearest_name(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mine.yaml",
        "extends: sol\npartitions:\n  htc:\n    max_time: 4 hours\n    node_type: [standard]\nnode_typs: {}\n",
    )
    assert problems_of(path) == [
        f'{path}:4: partitions.htc.max_time: "4 hours" is not a Slurm time; try 04:00:00',
        f"{path}:5: partitions.htc.node_type: unknown key; did you mean 'node_types'?",
        f"{path}:6: node_typs: unknown key; did you mean 'node_types'?",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1, 2\nb: 3\n", ":2: not valid YAML"),
        ("a: 1\na: 2\n", "duplicate key"),
        ("- 1\n", ":1: expected a mapping"),
        ("", ":1: expected a mapping of keys to values, got nothing"),
        ("1: x\n", ":1: the key 1 is not text"),
        ("a: \x01\n", "not valid YAML"),
    ],
)
def test_malformed_yaml_is_one_sentence(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path / "bad.yaml", text)
    with pytest.raises(SpecError) as caught:
        read_document(path)
    assert str(caught.value).startswith(f"{path}")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_not_utf8_and_not_there(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(SpecError, match="is not UTF-8"):
        read_document(tmp_path / "latin.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        read_document(tmp_path / "none.yaml")


def test_extends_merges_and_keeps_origins(tmp_path: Path) -> None:
    path = write(tmp_path / "ours.yaml", "extends: sol\nname: ours\npartitions:\n  htc:\n    max_time: 02:00:00\n")
    document = Library().document("clusters", str(path))
    profile = validate(ClusterProfile, document)
    assert profile.partitions["htc"].max_time == 7200
    assert profile.partitions["public"].max_time == 7 * 86400
    assert document.origin(("partitions", "htc", "max_time")).file == str(path)
    base = document.origin(("partitions", "public", "max_time"))
    assert base.file.endswith("sol.yaml")
    assert base.source is not None
    assert base.as_of == "2026-08"


def test_a_source_that_is_not_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "sources:\n  docs: {title: T, as_of: x}\nsource: dcos\nname: a\n")
    with pytest.raises(SpecError, match=r"a\.yaml:3: no source 'dcos' in `sources`; did you mean 'docs'"):
        read_document(path)


def test_extends_something_that_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "extends: soll\n")
    with pytest.raises(SpecError, match=r"a\.yaml:1: extends: no cluster profile 'soll'; did you mean 'sol'"):
        Library().document("clusters", str(path))


def test_a_list_is_added_to_the_one_below(tmp_path: Path) -> None:
    text = "extends: sol\nname: ours\nscript:\n  +lines:\n    - module load x\n    - 7\n"
    path = write(tmp_path / "ours.yaml", text)
    assert problems_of(path) == [f"{path}:6: script.lines.2: expected a text, got 7; put it in quotes"]
    path = write(tmp_path / "ours.yaml", text.replace("    - 7\n", ""))
    assert Library().cluster(str(path)).script.lines == ("export SLURM_EXPORT_ENV=ALL", "module load x")
    document = Library().document("clusters", str(path))
    assert document.origin(("script", "lines", 0)).file.endswith("sol.yaml")
    assert document.origin(("script", "lines", 1)).line == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "extends: sol\nscript:\n  +lines: module load x\n",
            ":3: script.+lines: expected a list to add to another list",
        ),
        (
            "extends: sol\nscript:\n  +directives: [a]\n",
            ":3: script.+directives: expected a list to add to another list",
        ),
        ("extends: sol\n+script:\n  lines: [a]\n", ":2: +script: expected a list to add to another list"),
        ("extends: sol\nscript:\n  +line: [a]\n", ":3: script.line: unknown key; did you mean 'lines'?"),
    ],
)
def test_what_cannot_be_added(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path / "ours.yaml", text)
    assert problems_of(path) == [f"{path}{expected}"]


def test_an_empty_environment_for_steps_is_a_fault_of_the_profile(tmp_path: Path) -> None:
    path = write(tmp_path / "ours.yaml", "extends: sol\nname: ours\nscript:\n  lines: [module load x]\n")
    (problem,) = problems_of(path)
    assert (
        "script.directives.export: gives an empty environment to the steps of srun, too: add `export SLURM_EXP"
        in problem
    )
    launch = "launch: {arguments: [--export=ALL]}\n"
    assert Library().cluster(str(write(tmp_path / "b.yaml", path.read_text() + launch))).script.lines == (
        "module load x",
    )
