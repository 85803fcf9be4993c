"""Videos, written by Pillow and by a real ffmpeg, and read back by others."""

from __future__ import annotations

import io
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hpcrl.rl.video import Video


def moving(count: int, size: tuple[int, int] = (63, 91)) -> list[np.ndarray]:
    """Images (height, width, 3) of a white bar that moves to the right."""
    images = [np.zeros((*size, 3), np.uint8) for _ in range(count)]
    for number, image in enumerate(images):
        image[:, 2 * number : 2 * number + 9] = 255
    return images


@pytest.mark.slow
def test_a_real_ffmpeg_writes_what_it_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "-q",
        "--python",
        sys.executable,
        "--target",
        tmp_path / "ffmpeg",
    ]
    subprocess.run([*uv, "imageio-ffmpeg==0.6.0"], check=True)
    monkeypatch.syspath_prepend(tmp_path / "ffmpeg")
    monkeypatch.setenv("PATH", str(tmp_path))  # no other ffmpeg
    images = moving(30)
    video = Video(rate=25)
    for image in images:
        video.add(image)
    path = tmp_path / "bar.mp4"
    video.write(path)
    assert path.read_bytes()[4:8] == b"ftyp"
    program = import_module("imageio_ffmpeg").get_ffmpeg_exe()
    words = [program, "-loglevel", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(words, capture_output=True, check=True)
    # Its width and height are even, and each image is there.
    found = np.frombuffer(done.stdout, np.uint8).reshape(30, 64, 92, 3)[:, :63, :91]
    assert np.abs(found.astype(float) - np.stack(images)).mean() < 6
    told = subprocess.run([program, "-i", path], capture_output=True, text=True, check=False).stderr
    assert "25 fps" in told and "h264" in told and "yuv420p" in told


def test_a_gif_has_every_image_in_its_time(tmp_path: Path) -> None:
    video = Video(rate=50)  # twice as many as browsers show
    for image in moving(30):
        video.add(image)
    video.write(tmp_path / "bar.gif")
    with Image.open(io.BytesIO((tmp_path / "bar.gif").read_bytes())) as shown:
        assert getattr(shown, "n_frames", 1) == 15 == len(video)
        assert shown.info["duration"] == 40
        shown.seek(14)
        last = np.asarray(shown.convert("RGB"))
    assert last[:, 56:65].min() > 200 and last[:, :50].max() < 50
