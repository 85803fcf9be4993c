"""At most one process changes a plan, however it is started and however its predecessor ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats import lease
from hpcrl.formats.lease import FOLDER, held_lease

HOLDER = """
import sys, time
from pathlib import Path
from hpcrl.formats.lease import held_lease
with held_lease(Path(sys.argv[1]), "submit", lambda text: print(text, file=sys.stderr, flush=True)):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(directory: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_waits_says_for_whom_and_goes_on(tmp_path: Path) -> None:
    first = holder(tmp_path)
    said: list[str] = []
    heard = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        heard.set()

    entered = threading.Event()

    def second() -> None:
        with held_lease(tmp_path, "submit", say):
            entered.set()

    thread = threading.Thread(target=second)
    thread.start()
    assert heard.wait(20)
    assert not entered.is_set()
    assert f"on {socket.gethostname()} (process {first.pid}, since 20" in said[0]
    first.communicate("")
    assert entered.wait(20)
    thread.join()
    assert len(said) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_holder_of_this_host_is_followed_at_once(tmp_path: Path, number: signal.Signals) -> None:
    first = holder(tmp_path)
    first.send_signal(number)
    first.wait()
    with held_lease(tmp_path, "submit", lambda text: None) as held:
        held.check()


def test_a_dead_holder_of_another_host_is_followed_after_its_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "DEAD_SECONDS", 1.0)
    (tmp_path / FOLDER).mkdir()
    facts = {
        "verb": "submit",
        "user": "ann",
        "host": "login9",
        "boot": "b",
        "pid": 1,
        "process_started": 0,
        "since": "noon",
    }
    (tmp_path / FOLDER / "000004").write_text(json.dumps(facts))
    # Its clock is hours ahead: that does not matter.
    os.utime(tmp_path / FOLDER / "000004", (time.time() + 9999, time.time() + 9999))
    said: list[str] = []
    with held_lease(tmp_path, "submit", said.append):
        assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["000005"]
    assert said[0] == "waiting for `hpcrl submit` of ann on login9 (process 1, since noon)"
    assert "no sign of life for 1 s; taking over" in said[1]


def test_a_holder_of_another_host_that_lives_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "DEAD_SECONDS", 0.8)
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(lease, "_is_dead_here", lambda content: False)
    taken = threading.Event()
    with held_lease(tmp_path, "submit", lambda text: None) as first:

        def second() -> None:
            with held_lease(tmp_path, "submit", lambda text: None):
                taken.set()

        thread = threading.Thread(target=second)
        thread.start()
        assert not taken.wait(2.5)
        first.check()
    thread.join()
    assert taken.is_set()


def test_one_that_was_suspended_and_replaced_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "DEAD_SECONDS", 0.3)
    monkeypatch.setattr(lease, "_is_dead_here", lambda content: False)
    with (
        held_lease(tmp_path, "submit", lambda text: None) as first,
        held_lease(tmp_path, "cancel", lambda text: None) as second,
    ):
        second.check()
        with pytest.raises(HpcrlError, match="another hpcrl took it over"):
            first.check()
    # What the first gives back is not the second's.
    with held_lease(tmp_path, "submit", lambda text: None) as third:
        third.check()


def test_many_at_once_never_two(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\nfrom pathlib import Path\nfrom hpcrl.formats.lease import held_lease\n"
        "for _ in range(8):\n"
        "    with held_lease(Path(sys.argv[1]), 'submit', lambda text: None):\n"
        "        mark = os.open(sys.argv[1] + '/mark', os.O_CREAT | os.O_EXCL)\n"
        "        os.close(mark)\n        os.unlink(sys.argv[1] + '/mark')\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(3)]
    assert [each.wait(120) for each in processes] == [0, 0, 0]
    assert len(list((tmp_path / FOLDER).iterdir())) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", "\0\0", "x" * 100_000])
def test_a_lease_that_says_nothing_is_waited_for_like_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(lease, "DEAD_SECONDS", 0.3)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "1").write_text(content)
    said: list[str] = []
    with held_lease(tmp_path, "submit", said.append):
        pass
    assert said[0] == "waiting for another hpcrl"


def test_a_plan_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file")
    with pytest.raises(UsageError, match="cannot be written"), held_lease(tmp_path, "submit", lambda text: None):
        pass
