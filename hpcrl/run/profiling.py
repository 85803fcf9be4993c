"""The profiler of one rank: around its training or its command, and its file in the plan.

A profile is never worth a cell: whatever fails here is a note in the row of the profile, and the cell goes on.
"""

from __future__ import annotations

import errno
import importlib
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

from hpcrl.formats.profiles import PROFILES, Profile, file_name, functions_text, stacks_text
from hpcrl.profilers import PROFILERS
from hpcrl.run.profilers.interface import Attached, Found, Tool
from hpcrl.run.profilers.python_program import SECONDS
from hpcrl.telemetry.phases import PhaseClock

PHASE = "profile"
_MEBIBYTE = 1024**2


class Profiling:
    """Profiles the workload of one rank, if a profiler is named.

    Args:
        profiler: a name of :data:`hpcrl.profilers.PROFILERS`; None: nothing happens.
        plan: the plan's directory.
        record: the file name of the rank's record.
        most: maximum MiB of the profile's file.
        framework: that of built-in training.
        make: makes the tool of a profiler.
        window: the environment step of a training at which it begins, and the one at which it ends; None: at the training's end.
        hurried: tells whether a signal has come, after which there may be only seconds until the record must be closed.
    """

    def __init__(
        self,
        profiler: str | None,
        plan: Path,
        record: str,
        most: int,
        clock: PhaseClock,
        framework: str | None = None,
        make: Callable[[str, str | None], Tool] | None = None,
        window: tuple[int, int | None] = (0, None),
        hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        self._profiler, self._folder, self._record, self._most = profiler, plan / PROFILES, record, most
        self._clock, self._framework, self._make = clock, framework, make or tool_of
        self._tool: Tool | None = None
        self._from, self._until = window
        self._hurried = hurried
        self._waiting = False  # for the step at which it begins
        self._running = False
        self._ended = False  # before the training did
        self._scratch: Path | None = None
        self._place = Path()  # where a command's profiler writes
        self._stopping = 0.0  # seconds of a look at which the profiler stopped
        self.profile: Profile | None = None

    @contextmanager
    def training(self) -> Iterator[None]:
        """Profile the training that the caller does meanwhile."""
        with self._clock.aside(PHASE) if self._profiler else nullcontext():
            self._waiting = self._begun()
            if not self._from:
                self._begin()
        try:
            yield
        finally:
            with self._clock.aside(PHASE) if self._profiler else nullcontext():
                if self._hurried():
                    self._abandon()
                elif self._waiting:
                    self._note(f"the training ended before step {self._from:,}, at which the profiler begins")
                elif self._running and self._scratch:
                    self._end(self._scratch)
                self._discard()

    def acting(self) -> AbstractContextManager[None]:
        """Profile an actor, whose steps are not the training's: with a window, only the learner is profiled."""
        if not self.marks():
            return self.training()
        self._note("an actor is profiled as a whole or not at all: profile_from and profile_steps are of the learner")
        return nullcontext()

    def marks(self) -> tuple[int, ...]:
        """Return the steps at which a training must call :meth:`look`."""
        return tuple(sorted(step for step in (self._from, self._until) if step)) if self._profiler else ()

    def look(self, step: int) -> None:
        """Let the profiler see that the training has come to an environment step."""
        if (
            self._waiting and self._until is not None and step >= self._until
        ):  # a round of actors was longer, or a checkpoint is later
            self._waiting = False
            self._note(
                f"the training passed the steps {self._from:,} to {self._until:,} at once, and the profiler saw none of them"
            )
        elif self._waiting and step >= self._from:
            with self._clock.aside(PHASE):
                self._begin()
        elif self._running and self._tool and not self._ended:
            with self._clock.aside(PHASE):
                started = perf_counter()
                over = self._until is not None and step >= self._until
                result = self._tried("ended", _stopped if over else lambda tool: tool.look())
                self._running = result is not None
                if result and result[0]:
                    self._ended = True
                    self._stopping += perf_counter() - started

    def command(self, words: list[str], scratch: Path) -> list[str]:
        """Return the command line that runs a command under the profiler; unchanged without one."""
        if not self._begun():
            return words
        scratch.mkdir()
        self._place = scratch
        wrapped = self._tried("cannot start", lambda tool: tool.wrapped(words, scratch))
        self._running = wrapped is not None
        return wrapped[0] if wrapped else words

    @property
    def attaches(self) -> bool:
        """Tell whether the profiler looks at a command from outside."""
        return self._running and isinstance(self._tool, Attached)

    def attach(self, pid: int, environment: Mapping[str, str]) -> list[int]:
        """Let such a profiler look at a command that has just started; return its own processes."""
        tool = self._tool
        if not (self.attaches and isinstance(tool, Attached)):
            return []
        self._running = self._tried("cannot start", lambda _: tool.attach(pid, environment)) is not None
        return tool.processes()

    def detach(self) -> None:
        """End such a profiler, because the command has ended."""
        if self.attaches:
            with self._clock.aside(PHASE):
                if self._hurried():
                    self._abandon()
                    return
                started = perf_counter()
                self._running = self._tried("cannot stop", lambda tool: tool.stop()) is not None
                self._stopping += perf_counter() - started

    def take_writing(self) -> None:
        """Count the seconds in which a command's own process wrote its profile as the profiler's."""
        if not self._running:
            return
        try:
            seconds = float((self._place / SECONDS).read_text())
        except (OSError, ValueError):
            return
        if 0 < seconds < math.inf:
            self._stopping += seconds
            self._clock.move(seconds, PHASE)

    def command_ended(self, scratch: Path) -> None:
        """Take what the profiler of a command wrote."""
        if not self._running:
            return
        with self._clock.aside(PHASE):
            started = perf_counter()
            result = self._tried("cannot be read", lambda tool: tool.read(scratch))
            if result and result[0] is None:
                why = "the command left no profile: it was ended by a signal, replaced itself by another program, or ended without Python's own exit"
                self._note(why)
            elif result and result[0]:
                self._keep(result[0], started)

    def facts(self) -> dict[str, Any]:
        """Return the profile for the footer of the record."""
        return {"profile": self.profile.facts()} if self.profile else {}

    def _begun(self) -> bool:
        if self._profiler is None:
            return False
        try:
            self._tool = self._make(self._profiler, self._framework)
        except Exception as error:
            self._note(f"{self._profiler} cannot start: {_said(error)}")
        return self._tool is not None

    def _abandon(self) -> None:
        """Leave the profile where the profiler is, because the cell must end."""
        if self._running and self._tried("cannot stop", lambda tool: tool.abandon()):
            self._note("no profile was written, because a signal ended the cell")
        self._running = False

    def _begin(self) -> None:
        """Start the tool, if there is one."""
        if self._waiting:
            self._waiting = False
            self._running = self._tried("cannot start", self._start) is not None
            if not self._running:
                self._discard()

    def _start(self, tool: Tool) -> None:
        """Start a tool in a directory of its own. The directory stays if a signal kills this process."""
        self._scratch = Path(tempfile.mkdtemp(prefix=f"hpcrl-profile-{self._record.partition('.')[0]}-"))
        tool.start(self._scratch)

    def _discard(self) -> None:
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _end(self, scratch: Path) -> None:
        started = perf_counter()
        if not self._ended and self._tried("cannot stop", lambda tool: tool.stop()) is None:
            return
        if result := self._tried("cannot write", lambda tool: tool.write(scratch)):
            self._keep(result[0], started)

    def _keep(self, found: Found, started: float) -> None:
        """Move the file into the plan, unless it is too large, and keep the summary."""
        size, note, file = found.file.stat().st_size, None, None
        if size > self._most * _MEBIBYTE:
            note = (
                f"the file of {_mebibytes(size)} MiB was not kept, because `profile_limit` is {self._most} MiB: "
                "set it higher, or train for fewer steps"
            )
        else:
            file = file_name(self._record, "".join(found.file.suffixes))
            note = self._move(found.file, file)
        if note:
            print(f"hpcrl: profile: {note}", file=sys.stderr)
        assert self._profiler is not None
        self.profile = Profile(
            profiler=self._profiler,
            file=None if note else file,
            size=size,
            note=note,
            seconds=self._stopping + perf_counter() - started,
            unit=PROFILERS[self._profiler].unit,
            total=found.total,
            functions=functions_text(found.functions),
            stacks=stacks_text(found.tree) if found.tree else "",
        )

    def _move(self, source: Path, name: str) -> str | None:
        """Copy a file into the plan as a new one; return why that is not possible."""
        path = self._folder / name
        try:
            if self._folder.is_symlink():
                return f"{self._folder}: is a symbolic link, and the profile would be written elsewhere: remove it"
            if self._folder.exists() and not self._folder.is_dir():
                return f"{self._folder}: is not a directory, so no profile can be kept there: move it away"
            self._folder.mkdir(exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as error:
            return f"{path}: cannot be written: {error.strerror}"
        try:
            with os.fdopen(handle, "wb") as target, source.open("rb") as content:
                shutil.copyfileobj(content, target, _MEBIBYTE)
        except OSError as error:
            path.unlink(missing_ok=True)
            return f"{path}: cannot be written: {error.strerror}"
        return None

    def _tried(self, what: str, action: Callable[[Tool], Any]) -> tuple[Any] | None:
        """Return the result of an action in a tuple; None if it failed, with a note."""
        assert self._tool is not None
        try:
            return (action(self._tool),)
        except Exception as error:
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT) and self._scratch
            hint = f" in {full.parent}: set TMPDIR to a directory with room" if full else ""
            self._note(f"{self._profiler} {what}: {_said(error)}{hint}")
            return None

    def _note(self, text: str) -> None:
        assert self._profiler is not None
        print(f"hpcrl: profile: {text}", file=sys.stderr)
        self.profile = Profile(self._profiler, note=text, unit=PROFILERS[self._profiler].unit)


def _stopped(tool: Tool) -> bool:
    tool.stop()
    return True


def tool_of(profiler: str, framework: str | None) -> Tool:
    """Return the tool of a profiler, from the module of its name."""
    made: Tool = importlib.import_module(f"hpcrl.run.profilers.{profiler.replace('-', '_')}").Tool(framework)
    return made


def _mebibytes(size: int) -> str:
    return f"{size / _MEBIBYTE:.1f}"


def _said(error: Exception) -> str:
    """Return the first line of an error, with its kind where it is not a sentence of hpcrl's."""
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {text}".removesuffix(": ") if type(error).__module__ != "hpcrl.errors" else text
