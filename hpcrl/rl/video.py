"""Videos of episodes: images as GIF, which needs Pillow, or as MP4, which also needs ffmpeg."""

from __future__ import annotations

import io
import math
import shutil
import subprocess
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.errors import HpcrlError, UsageError, suggestion
from hpcrl.formats.files import write_atomically

KINDS = (".gif", ".mp4")
MOST_PER_SECOND = 25.0  # a GIF's delay is in hundredths of a second, and browsers slow down those below two
_COLOURS = 64


class Video:
    """Images that follow each other, each at most `side` pixels wide and high, for at most `seconds`.

    Of more than `most` images per second it keeps every second, third, ... one, so that it is as fast as the environment. `cut` tells
    whether there were more images than it keeps.

    Args:
        rate: the environment's images per second.

    Raises:
        UsageError: Pillow is not installed.
    """

    def __init__(self, rate: float, side: int = 320, seconds: float = 60.0, most: float = MOST_PER_SECOND) -> None:
        if find_spec("PIL") is None:
            raise UsageError("a video needs the package pillow, which is not installed here: pip install pillow")
        rate = rate if rate > 0 else most
        self._every, self._side = math.ceil(rate / most), side
        self.rate = rate / self._every
        self._most, self._seen = max(1, int(seconds * self.rate)), 0
        self._images: list[Any] = []
        self.cut = False

    def add(self, image: NDArray[np.uint8]) -> None:
        """Add an image (height, width, 3)."""
        number, self._seen = self._seen, self._seen + 1
        if number % self._every:
            return
        if len(self._images) >= self._most:
            self.cut = True
            return
        from PIL import Image

        drawn = Image.fromarray(image)
        drawn.thumbnail((self._side, self._side))
        self._images.append(drawn.quantize(_COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE))

    def __len__(self) -> int:
        return len(self._images)

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height in pixels."""
        width, height = self._images[0].size
        return width, height

    def gif(self) -> bytes:
        """Return it as a GIF, which begins again at its end."""
        first, *others = self._images
        out = io.BytesIO()
        first.save(out, "GIF", save_all=True, append_images=others, duration=round(1000 / self.rate), loop=0)
        return out.getvalue()

    def write(self, path: Path) -> None:
        """Write it, as the name of the file says: .gif or .mp4.

        Raises:
            UsageError: ffmpeg is not installed here.
            HpcrlError: ffmpeg fails, or the file cannot be written.
        """
        write_atomically(path, self.gif() if path.suffix == ".gif" else self._mp4(path))

    def _mp4(self, path: Path) -> bytes:
        width, height = self.size
        rows = b"".join(image.convert("RGB").tobytes() for image in self._images)
        with tempfile.TemporaryDirectory(prefix="hpcrl-video-") as place:
            out = Path(place) / "video.mp4"
            # Widths and heights must be even for the pixels that all players know.
            words = [
                encoder(path), "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{self.rate:g}",
                "-i", "-", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(out),
            ]  # fmt: skip
            done = subprocess.run(words, input=rows, capture_output=True, check=False)
            if done.returncode or not out.is_file():
                said = done.stderr.decode(errors="replace").strip().splitlines()
                raise HpcrlError(f"{path}: ffmpeg failed: {said[-1] if said else f'exit code {done.returncode}'}")
            return out.read_bytes()


def check_name(path: Path) -> None:
    """Check before the episodes that a video of this name can be written here.

    Raises:
        UsageError: it is neither a GIF nor an MP4, or there is no encoder for an MP4.
    """
    if path.suffix not in KINDS:
        raise UsageError(f"{path}: no such kind of video; {suggestion(path.suffix, KINDS)}")
    if path.suffix == ".mp4":
        encoder(path)


def encoder(path: Path) -> str:
    """Return the program that encodes the MP4 `path`.

    Raises:
        UsageError: there is none.
    """
    if program := shutil.which("ffmpeg"):
        return program
    if find_spec("imageio_ffmpeg"):
        return str(import_module("imageio_ffmpeg").get_ffmpeg_exe())
    raise UsageError(f"{path}: an MP4 needs ffmpeg, which is not installed here: install it, or name a .gif")
