from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpcrl.rl import checkpoint

CONTENT = {"a/x": np.arange(3.0), "b/x": np.zeros((2, 2), np.float32)}


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "below" / "c.npz"
    checkpoint.save(file, CONTENT, {"step": 7, "best": None})
    found = checkpoint.load(file)
    assert found is not None
    arrays, facts = found
    assert facts == {"step": 7, "best": None}
    assert {name: (each.dtype, each.tolist()) for name, each in arrays.items()} == {
        name: (each.dtype, each.tolist()) for name, each in CONTENT.items()
    }
    assert list(checkpoint.part("a", arrays)) == ["x"]
    assert checkpoint.part("b", checkpoint.nested("b", {"y": CONTENT["a/x"]})).keys() == {"y"}
    assert [path.name for path in file.parent.iterdir()] == ["c.npz"]


def test_a_disk_that_fails_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.npz"
    checkpoint.save(file, CONTENT, {"step": 1})
    before = file.read_bytes()

    def full(handle: object, **arrays: object) -> None:
        handle.write(b"half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(file, CONTENT, {"step": 2})
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["c.npz"]


def test_a_checkpoint_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    file = tmp_path / "c.npz"
    assert checkpoint.load(file) is None
    checkpoint.save(file, CONTENT, {})
    whole = file.read_bytes()
    for damaged in (b"", b"no archive", whole[:100], whole[:-30]):
        file.write_bytes(damaged)
        assert checkpoint.load(file) is None


def test_a_checkpoint_brings_no_code(tmp_path: Path) -> None:
    file = tmp_path / "c.npz"
    with file.open("wb") as stream:
        np.savez(stream, facts=np.frombuffer(b"{}", np.uint8), bad=np.array([{"code": print}], object))
    assert checkpoint.load(file) is None


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    file, other = tmp_path / "c.npz", tmp_path / ".other.npz.12"
    (tmp_path / ".c.npz.999999").write_bytes(b"half")
    other.write_bytes(b"another cell's")
    checkpoint.save(file, CONTENT, {"step": 1})
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.npz.12", "c.npz"]
