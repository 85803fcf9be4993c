"""A value of somebody else's never tells the terminal what to do, nor a spreadsheet."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import hpcrl.cli
from hpcrl.cli import common
from hpcrl.errors import printable
from hpcrl.report.renderer import FORMATS
from hpcrl.report.spreadsheet import harmless, to_csv

HOSTILE = "\x1b]0;owned\x07\x9b31m\u202egpj\u2066\x00\r\udcff\U000e0041\ufeff\x7f"


def test_control_characters_are_shown_and_text_is_not_changed() -> None:
    shown = printable(HOSTILE)
    assert shown.isascii()
    assert shown.isprintable()
    assert shown.startswith("\\x1b]0;owned\\x07\\u009b31m\\u202egpj\\u2066\\x00\\x0d\\udcff")
    for plain in ("héllo, 世界 \N{GRINNING FACE}", "a\tb\nc", "\N{WOMAN}\u200d\N{ROCKET}", "שלום"):
        assert printable(plain) == plain


def test_json_keeps_its_value() -> None:
    text = json.dumps({"x": HOSTILE.replace("\udcff", "")}, ensure_ascii=False)
    assert json.loads(printable(text)) == json.loads(text)


def test_every_verb_prints_through_one_function() -> None:
    for path in Path(hpcrl.cli.__file__).parent.glob("*.py"):
        found = re.findall(r"click\.s?echo\(|(?<![.\w])print\(|\.show\(\)", path.read_text())
        assert found == (["click.echo("] if path.name == "common.py" else []), path.name


@pytest.mark.parametrize("terminal", [False, True])
def test_tables_and_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    common.print_table(["x" + HOSTILE, "y"], [[HOSTILE, "a\tb\nc"]])
    common.echo(HOSTILE, err=True)
    with common.progress(HOSTILE) as advance:
        advance(1, 1)
    out, err = capsys.readouterr()
    told = out + err
    assert not re.search("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202e\u2066]|\x1b\\]", told)
    assert "gpj" in told
    if not terminal:
        assert out.splitlines()[1].count("\t") == 1


def test_what_click_says_itself_and_errors(hpcrl: Any, tmp_path: Path) -> None:
    for arguments in (("status", f"{tmp_path}/\x1b]0;x\x07"), ("\x1b]0;x\x07",), ("plan", "--\x1b]0;x\x07")):
        found = hpcrl(*arguments)
        assert found.code == 2
        assert "\x1b" not in found.err + found.out
        assert "]0;x" in found.err


def test_a_log_is_shown_without_its_escapes(tmp_path: Path, hpcrl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"one\n\x1b[31mred\x1b[0m \x1b]0;x\x07\n10%\r100%\nend\xff")
    monkeypatch.setattr("hpcrl.submit.logs.find_log", lambda *_: log)
    assert hpcrl("logs", tmp_path, "--cell", "x").out == "one\nred \\x1b]0;x\\x07\n100%\nend\ufffd"


@pytest.mark.parametrize("text", ["=1+1", "+cmd|x", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-", "=HYPERLINK(1)"])
def test_a_formula_is_text(text: str) -> None:
    assert harmless(text) == f"'{text}"
    table = pd.DataFrame({"a": [text, "x", None], text: [1.0, -2.0, None]})
    found = pd.read_csv(io.StringIO(to_csv(table)), lineterminator="\n")
    assert found["a"][0].startswith("'")
    assert [name[:1] for name in found.columns] == ["a", "'"]


@pytest.mark.parametrize("value", ["-1.5", "+3", "-inf", "x=1", "", 3, -2.5, None, "a-b"])
def test_what_is_no_formula_stays(value: object) -> None:
    assert harmless(value) == value


@pytest.mark.parametrize("kind", FORMATS)
def test_a_control_character_in_a_figure(kind: str) -> None:
    """The drawing program ends the whole process at some of them."""
    text = HOSTILE.replace("\udcff", "")
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": [{"a": text, "b": 1}]},
        "mark": "bar",
        "title": text,
        "encoding": {"x": {"field": "a", "type": "nominal"}, "y": {"field": "b", "type": "quantitative"}},
        "config": {},
    }
    assert len(FORMATS[kind](spec)) > 500
