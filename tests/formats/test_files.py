from __future__ import annotations

import pytest

from hpcrl.formats.files import is_plain_name, plain_name


@pytest.mark.parametrize("text", ["a", "score-by-learning_rate", "cpus=2, gpus=0", "v1.0"])
def test_a_short_plain_name_stays_as_it_is(text: str) -> None:
    assert plain_name(text) == text


@pytest.mark.parametrize(
    "text", ["", ".", "..", "/", "/etc/x", "../../x", "a/b", "a_b\x00", "a\nb", "\ud800", "ä" * 150, "x" * 151, ".ssh"]
)
def test_any_text_becomes_a_name_of_its_own_in_its_directory(text: str) -> None:
    name = plain_name(text)
    assert is_plain_name(name) and len(name.encode()) < 200
    assert name not in {plain_name(f"{text}{end}") for end in ("_", "/", "x", ".")}
