from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrl.environments import build
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.plan import Environment


def environment(**changes: Any) -> Environment:
    content: dict[str, Any] = {
        "key": "tiny-cpu-1", "name": "tiny", "flavour": "cpu", "horovod": False, "python": "3.11", "imports": ["six"],
        "find_links": [], "conda": "", "requirements": "six==1.17.0\n",
    }  # fmt: skip
    return Environment(**content | changes)


def built(root: Path, each: Environment, said: list[str] | None = None) -> build.Built:
    words = said if said is not None else []
    (found,) = build.build_all([each], {"manager": "uv", "root": str(root)}, lambda key, text: words.append(text))
    return found


@pytest.mark.slow
def test_built_once_checked_and_marked(tmp_path: Path) -> None:
    said: list[str] = []
    first = built(tmp_path, environment(), said)
    assert first.made
    assert said[-1] == "built: six 1.17.0"
    again = built(tmp_path, environment(), said)
    assert not again.made
    assert said[-1] == "is there"


@pytest.mark.slow
def test_a_build_that_was_interrupted_is_taken_up(tmp_path: Path) -> None:
    built(tmp_path, environment())
    (tmp_path / "tiny-cpu-1" / build.MARKER).unlink()
    assert built(tmp_path, environment()).made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"requirements": "six==99.0\n"}, "uv failed: .*six==99.0"),
        ({"imports": ["seven"]}, "was built, but does not work: .*No module named 'seven'"),
        ({"python": "2.4"}, "uv failed"),
    ],
)
def test_what_cannot_be_built_says_why_and_does_not_count(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(HpcrlError, match=expected):
        built(tmp_path, environment(**changes))
    assert not build.is_built(tmp_path / "tiny-cpu-1")


def test_horovod_is_refused_clearly(tmp_path: Path) -> None:
    with pytest.raises(HpcrlError, match="building Horovod is not part of this version"):
        built(tmp_path, environment(horovod=True))


def test_the_directory_of_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCRL_ENVIRONMENTS", raising=False)
    monkeypatch.setenv("WHERE", "/somewhere")
    assert build.root_of({"root": "$WHERE/e"}) == Path("/somewhere/e")
    with pytest.raises(UsageError, match="a variable in it is not set here"):
        build.root_of({"root": "/work/$HPCRL_NOT_SET/e"})
    monkeypatch.setenv("HPCRL_ENVIRONMENTS", "/mine")
    assert build.root_of({"root": "/work/$HPCRL_NOT_SET/e"}) == Path("/mine")
    (tmp_path / "file").touch()
    monkeypatch.setenv("HPCRL_ENVIRONMENTS", str(tmp_path / "file" / "e"))
    with pytest.raises(HpcrlError, match="cannot be made"):
        build.build_all([environment()], {"manager": "uv", "root": "x"}, lambda key, text: None)
