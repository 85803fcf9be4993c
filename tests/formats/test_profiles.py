"""The summary of a profile: functions, call trees, collapsed stacks, flame graphs."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from hpcrl.formats.profiles import (
    MOST_FRAMES,
    MOST_FUNCTIONS,
    Frame,
    Function,
    called_tree,
    functions_of,
    functions_text,
    place_of,
    plain_name,
    pruned,
    read_functions,
    read_stacks,
    stacks_text,
)
from hpcrl.report.flame import WIDTH, flame_graph

STACKS = "main;load 2\nmain;train;step 5\nmain;train 1\nidle 2"


def test_collapsed_stacks_become_a_tree_and_stacks_again() -> None:
    root = read_stacks(STACKS)
    assert (root.value, root.callees["main"].value, root.callees["main"].callees["train"].own) == (10, 8, 1)
    assert set(stacks_text(root).split("\n")) == set(STACKS.split("\n"))
    assert {each.name: (each.own, each.total) for each in functions_of(root)} == {
        "main": (0, 8), "load": (2, 2), "train": (1, 6), "step": (5, 5), "idle": (2, 2),
    }  # fmt: skip


def test_a_recursive_function_counts_once() -> None:
    (walk, leaf) = functions_of(read_stacks("walk;walk;walk;leaf 3\nwalk 1"))
    assert (walk.name, walk.own, walk.total) == ("walk", 1, 4)
    assert (leaf.own, leaf.total) == (3, 3)


def test_a_function_s_time_is_divided_among_its_callers() -> None:
    roots = {"main": 10.0}
    calls = {"main": {"a": 6.0, "b": 4.0}, "a": {"shared": 3.0}, "b": {"shared": 1.0}, "shared": {"leaf": 2.0}}
    root = called_tree(roots, calls, {"main": 10.0, "a": 6.0, "b": 4.0, "shared": 4.0, "leaf": 2.0})
    main = root.callees["main"]
    assert {name: each.value for name, each in main.callees.items()} == {"a": 6, "b": 4}
    # A half of `shared` is in its callee, below each of its callers.
    assert main.callees["a"].callees["shared"].callees["leaf"].value == 1.5
    assert main.callees["b"].callees["shared"].callees["leaf"].value == 0.5
    assert main.own == 0


def test_functions_that_call_each_other_end() -> None:
    root = called_tree({"a": 4.0}, {"a": {"b": 3.0}, "b": {"a": 2.0}}, {"a": 4.0, "b": 3.0})
    assert root.callees["a"].callees["b"].callees == {}


def test_only_the_largest_frames_are_kept_and_the_rest_is_their_caller_s() -> None:
    root = Frame("all")
    for number in range(MOST_FRAMES + 100):
        root.add(["main", f"f{number}"], 1.0 if number else 100.0)
    kept = pruned(root)
    main = kept.callees["main"]
    assert len(main.callees) == MOST_FRAMES - 1
    assert main.callees["f0"].value == 100
    assert main.value == root.value
    assert main.own == pytest.approx(root.value - sum(each.value for each in main.callees.values()))
    small = Frame("all")
    small.add(["main", "tiny"], 0.5)
    small.add(["main"], 999.5)
    assert pruned(small).callees["main"].callees == {}


def test_names_cannot_break_the_lines_and_are_short() -> None:
    assert plain_name("a;b\tc\nd") == "a b c d"
    assert len(plain_name("x" * 1000)) == 120
    assert plain_name("") == "?"
    assert place_of("<built-in method sum>", "~", 0) == "<built-in method sum>"
    assert place_of("f", "/home/me/venv/lib/python3.11/site-packages/numpy/core.py", 7) == "f (numpy/core.py:7)"
    assert place_of("f", "/usr/lib/python3.11/json/encoder.py", 7) == "f (json/encoder.py:7)"
    assert place_of("f", "/home/me/code/src/train.py", 7) == "f (src/train.py:7)"
    assert place_of("f", "/p/worker.zip/hpcrl/rl/train.py", 7) == "f (hpcrl/rl/train.py:7)"


def test_functions_are_written_and_read_and_a_stranger_s_lines_are_left_out() -> None:
    known = [Function("a", 1.0, 3.0, 7), Function("b", 2.0, 2.0)]
    text = functions_text(known)
    assert sorted(read_functions(text), key=lambda each: each.name) == known
    odd = "a\t1\nb\tx\t2\t3\nc\tnan\t2\t3\nd\t1\tinf\t3\n\n<script>\t1\t2\t-3\n" + text
    assert [each.name for each in read_functions(odd)] == ["<script>", "b", "a"]
    assert read_stacks("a;b x\na;b nan\na -1\n1\n ok 2\na;c 1").callees["a"].value == 1


def test_a_learner_s_updates_are_kept_however_small_they_are() -> None:
    larger = [Function(f"f{number}", 1.0, 1.0 + number) for number in range(MOST_FUNCTIONS)]
    learner = "(hpcrl/rl/frameworks/jax/core.py:9)"
    update, burst = (Function(f"{name} {learner}", 0.0, 0.5, 7) for name in ("update", "_burst"))
    others = (f"whole_update {learner}", "update (hpcrl/rl/loops/core.py:9)", "update (x.py:9)")
    text = functions_text([*(Function(name, 0.0, 0.5) for name in others), *larger, update, burst])
    kept = read_functions(text)
    assert len(kept) == MOST_FUNCTIONS + 2
    assert kept[-2:] == [update, burst]
    assert not {function.name for function in kept} & set(others)


def test_a_flame_graph_is_one_svg_without_a_script() -> None:
    root = read_stacks("main;train (a/b.py:3);<b>&x 6\nmain;load 2")
    svg = flame_graph(root, "s", 'a "title" <b>', total=10.0)
    tree = ElementTree.fromstring(svg)
    titles = [each.text or "" for each in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[:2] == ['a "title" <b>', "all: 10 s, 100.0 %; own 2 s"]
    assert "<b>&x: 6 s, 60.0 %; own 6 s" in titles
    bars = [dict(each.attrib) for each in tree.iter("{http://www.w3.org/2000/svg}rect")]
    assert [float(each["width"]) for each in bars] == pytest.approx(
        [WIDTH * share - 0.5 for share in (1, 0.8, 0.6, 0.6, 0.2)]
    )
    assert [int(each["y"]) for each in bars] == [0, 18, 36, 54, 36]
    assert float(bars[4]["x"]) == pytest.approx(0.6 * WIDTH)  # beside its larger sibling
    assert "script" not in svg and "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_an_empty_profile_is_drawn_too() -> None:
    assert ElementTree.fromstring(flame_graph(Frame("all"), "s", "nothing")) is not None
