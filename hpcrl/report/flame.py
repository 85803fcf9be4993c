"""Flame graphs as SVG: no script, no network. Each frame is a bar whose width is its value; its callees are below it."""

from __future__ import annotations

import html
import zlib
from collections.abc import Iterator

from hpcrl.errors import printable
from hpcrl.formats.profiles import Frame
from hpcrl.report.design import in_short

WIDTH = 1200  # pixels
_ROW, _LETTER, _LEAST = 18, 6.6, 0.4  # height of a row, width of a letter, width of the narrowest bar
# Light colours, on which black letters have enough contrast, also on a dark page. A module has one colour.
_HUES = ("#f9c784", "#fcaf58", "#ffd9a0", "#f7b2ad", "#f4d58d", "#e8c9a0", "#fbc4a5", "#eec170")
_INK = "#1b1f24"


def flame_graph(root: Frame, unit: str, title: str, total: float | None = None) -> str:
    """Draw a call tree, the outermost frame at the top (an icicle, as snakeviz draws it).

    Args:
        unit: of the values.
        total: of the whole profile; what the tree lacks of it stays empty on the right. None: the tree's own.
    """
    whole = max(root.value, total or 0.0)
    bars = list(_bars(Frame("all", whole, root.callees), 0.0, 0, WIDTH / whole if whole > 0 else 0.0))
    height = _ROW * (1 + max((row for _, _, row, _ in bars), default=0))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="100%" role="img" '
        f'aria-label="{_text(title)}" font-family="system-ui, \'DejaVu Sans\', sans-serif" font-size="11">',
        f"<title>{_text(title)}</title>",
    ]
    for frame, x, row, width in bars:
        share = f"{100 * frame.value / whole:.1f} %" if whole > 0 else ""
        told = f"{frame.name}: {in_short(frame.value)} {unit}, {share}; own {in_short(frame.own)} {unit}"
        shown = _cut(frame.name, width)
        words = f'<text x="{x + 3:.1f}" y="{row * _ROW + 13}" fill="{_INK}">{_text(shown)}</text>' if shown else ""
        lines.append(
            f'<g><title>{_text(told)}</title><rect x="{x:.1f}" y="{row * _ROW}" width="{max(width - 0.5, _LEAST):.1f}" '
            f'height="{_ROW - 1}" fill="{_hue(frame.name)}"/>{words}</g>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _bars(frame: Frame, x: float, row: int, scale: float) -> Iterator[tuple[Frame, float, int, float]]:
    """Give each frame with its left edge, its row and its width; those too narrow to see are left out."""
    width = frame.value * scale
    if width < _LEAST:
        return
    yield frame, x, row, width
    for callee in sorted(frame.callees.values(), key=lambda callee: -callee.value):
        yield from _bars(callee, x, row + 1, scale)
        x += callee.value * scale


def _cut(name: str, width: float) -> str:
    """Return as much of a name as fits into its bar."""
    room = int((width - 6) / _LETTER)
    return name if len(name) <= room else f"{name[: room - 1]}…" if room >= 4 else ""


def _hue(name: str) -> str:
    module = name.rpartition(" (")[2].partition(":")[0]
    return _HUES[zlib.crc32(module.encode(errors="replace")) % len(_HUES)]


def _text(text: str) -> str:
    return html.escape(printable(text))
