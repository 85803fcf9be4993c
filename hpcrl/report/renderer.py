"""Draw figures in a separate process, because V8 ends its whole process when memory is missing.

The process reads requests from standard input, one line of JSON each. It answers each on standard output with a line of
JSON (the number of bytes that follow, or an error) and the bytes.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import IO, Any

from hpcrl.errors import HpcrlError, printable

_BUNDLE = "bundle"
# Maximum number of deaths before the first figure.
_MOST_DEATHS = 2


class RendererError(HpcrlError):
    """A figure could not be drawn. The message gives the reason, and what to do."""


class Renderer:
    """The process that draws. The first request starts it; a later one starts it again if it has ended."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._asked = False
        self._bundle: str | None = None
        self._deaths = 0
        self._why_lost = ""

    def __enter__(self) -> Renderer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._said.close()

    def begin(self) -> None:
        """Request the page's script early, because it takes a second, in which the caller can do other work."""
        with suppress(OSError):
            self._ask({"kind": _BUNDLE})
            self._asked = True

    def bundle(self) -> str:
        """Return the JavaScript that draws figures in a page.

        Raises:
            RendererError: the process was ended.
        """
        if self._bundle is None:
            self._bundle = self._answer({"kind": _BUNDLE}, self._asked).decode()
            self._asked = False
        return self._bundle

    def draw(self, spec: dict[str, Any], kind: str) -> bytes:
        """Draw a specification of Vega-Lite in one of :data:`FORMATS`.

        Raises:
            RendererError: it cannot be drawn, or the process was ended.
        """
        if self._asked:
            self.bundle()
        return self._answer({"kind": kind, "spec": spec})

    def _answer(self, request: dict[str, Any], asked: bool = False) -> bytes:
        if self._deaths >= _MOST_DEATHS:
            raise RendererError(self._why_lost)
        try:
            output = self._child.stdout if asked and self._child else self._ask(request)
            assert output is not None
            head = json.loads(output.readline() or "null")
            if head is None:
                raise EOFError
            content = output.read(int(head.get("size", 0)))
            if len(content) < head.get("size", 0):
                raise EOFError
        except (OSError, EOFError):
            self._deaths += 1
            self._why_lost = self._why(self._end())
            raise RendererError(self._why_lost) from None
        self._deaths = 0
        if "error" in head:
            raise RendererError(f"cannot be drawn: {head['error']}")
        return content

    def _ask(self, request: dict[str, Any]) -> IO[bytes]:
        if self._child is None:
            words = [sys.executable, "-P", "-m", "hpcrl.report.renderer"]  # -P: not from the working directory
            self._child = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, env=os.environ | _path()
            )
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(request).encode() + b"\n")
        self._child.stdin.flush()
        return self._child.stdout

    def _end(self) -> int:
        """End the process; return its exit code."""
        if self._child is None:
            return 0
        child, self._child, self._asked = self._child, None, False
        with suppress(OSError):
            assert child.stdin is not None
            child.stdin.close()
        try:
            code = child.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        assert child.stdout is not None
        child.stdout.close()
        return code

    def _why(self, code: int) -> str:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
        text = f"the process that draws figures (V8) was killed by {name}"
        if code > 0 and (last := self._last_line()):
            text += f" ({last})"
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            return (
                f"{text}: the address space is limited to {limit / 2**30:.1f} GiB (ulimit -v), but V8 reserves hundreds of GiB: "
                "run the report in a shell without this limit, or with --figures none"
            )
        return f"{text}: run the report with more memory, or with --figures none"

    def _last_line(self) -> str:
        self._said.seek(0)
        return printable(self._said.read().decode(errors="replace").strip().rpartition("\n")[2])[:200]


def _path() -> dict[str, str]:
    """Return the environment variable with which the process finds this package."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


# --- in the process that draws


def to_png(spec: dict[str, Any]) -> bytes:
    """Draw a specification as a PNG on white, at twice the size."""
    import vl_convert

    return vl_convert.vegalite_to_png(_printed(spec, "white"), scale=2)


def to_svg(spec: dict[str, Any]) -> bytes:
    """Draw a specification as an SVG."""
    import vl_convert

    return vl_convert.vegalite_to_svg(_printed(spec, "transparent")).encode()


def to_pdf(spec: dict[str, Any]) -> bytes:
    """Draw a specification as a PDF page of its own size."""
    import vl_convert

    return vl_convert.vegalite_to_pdf(_printed(spec, "white"))


FORMATS: dict[str, Callable[[dict[str, Any]], bytes]] = {"png": to_png, "svg": to_svg, "pdf": to_pdf}


def _printed(spec: dict[str, Any], background: str) -> dict[str, Any]:
    safe: dict[str, Any] = escaped(spec)
    return {**safe, "config": {**safe["config"], "background": background, "font": "DejaVu Sans"}}


def escaped(value: Any) -> Any:
    """Show control characters as escapes: they end the program that draws, and change the direction of text on a page."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {escaped(name): escaped(part) for name, part in value.items()}
    return [escaped(part) for part in value] if isinstance(value, list) else value


def _bundled() -> bytes:
    import vl_convert

    return str(vl_convert.javascript_bundle()).encode()  # type: ignore[call-arg]


def main() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the report handles Ctrl-C
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a library must not mix with the answers
    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            answer = _bundled() if request["kind"] == _BUNDLE else FORMATS[request["kind"]](request["spec"])
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            output.write(json.dumps({"error": first}).encode() + b"\n")
        else:
            output.write(json.dumps({"size": len(answer)}).encode() + b"\n" + answer)
        output.flush()


if __name__ == "__main__":
    main()
