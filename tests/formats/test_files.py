from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrl.errors import HpcrlError
from hpcrl.formats.files import check_writable, is_plain_name, plain_name, write_atomically


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


def test_neither_a_directory_nor_a_device_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    main, terminal = os.openpty()
    device = Path(os.ttyname(terminal))
    (tmp_path / "link").symlink_to(device)
    for path, why in (
        (Path(), "Is a directory"),
        (tmp_path / "folder", "Is a directory"),
        (device, "it is a device"),
        (tmp_path / "link", "it is a device"),
    ):
        for write in (check_writable, lambda place: write_atomically(place, "text")):
            with pytest.raises(HpcrlError, match=f"cannot be written: {why}"):
                write(path)
    os.close(main)
    os.close(terminal)
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "link"}
    (tmp_path / "gone").symlink_to("nowhere")
    write_atomically(tmp_path / "gone", "text")
    assert (tmp_path / "gone").read_text() == "text" and not (tmp_path / "nowhere").exists()
