"""Every message that a user may see, read from the source; ``pytest -s tests/test_messages.py`` prints them for a reader."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

MESSAGES = list(runpy.run_path(str(Path(__file__).parents[1] / "tools/messages"))["messages"]())

# Words of pydantic and Python, which say nothing to a user, and turns of phrase that readers found hard.
HARD = (
    "should be a valid",
    "Input should",
    "Value error,",
    "Traceback",
    "NoneType",
    "will not do",
    "will do",
    "would do:",
    "as it is, ",
    "what is no ",
    "is no number",
    "is no mapping",
    "is no name",
    "where one is wanted",
    "of the code as it",
    "to be made again",
    "there is none of",
)


def test_the_messages_are_all_found() -> None:
    assert len(MESSAGES) > 700
    assert any("is not a Slurm time; try" in each.text for each in MESSAGES)
    assert any("here: copy {directory} to a login node" in each.text for each in MESSAGES)


def test_no_message_has_words_that_readers_found_hard() -> None:
    wrong = []
    for each in MESSAGES:
        shown = f"{each.file}:{each.line}: {each.text}"
        print(shown)
        if any(word in re.sub(r"\{[^}]*\}", "{}", each.text) for word in HARD):
            wrong.append(shown)
    assert wrong == []


@pytest.mark.parametrize("sign", [" ,", " ;", ":.", "?.", " :"])
def test_no_message_has_odd_punctuation(sign: str) -> None:
    texts = (each.text for each in MESSAGES)
    assert [text for text in texts if sign in text and "{" not in text and "::" not in text] == []
