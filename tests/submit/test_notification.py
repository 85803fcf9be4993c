"""The message at the end: one, to a command or a URL, whatever became of the cells and of whoever should get it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hpcrl.submit import following
from hpcrl.submit.following import FILE, OWED, Following, left_to_follower
from tests.builders import command_study, planned
from tests.submit.test_local import Call, ready, states

__all__ = ["ready"]


@dataclass
class Server:
    """A real server, and what it was sent."""

    url: str
    posted: list[tuple[str | None, Any]] = field(default_factory=list)
    answer: int = 200
    hang: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"]))
            found.posted.append((self.headers["Content-Type"], json.loads(text)))
            if found.answer == 0:
                found.hang.wait(60)
            elif found.answer == 1:
                self.wfile.write(b"rubbish\r\n\r\n")
            else:
                self.send_response(found.answer)
                if found.answer == 302:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Server(f"http://127.0.0.1:{listening.server_port}/x")
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield found
    found.hang.set()
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_a_url_gets_json_by_post(hpcrl: Call, tmp_path: Path, server: Server) -> None:
    plan = planned(tmp_path / "p", command_study(["true"], notify=server.url))
    shown = hpcrl("notify", plan)
    assert (shown.code, shown.out) == (0, f"notified {server.url}\n")
    ((kind, content),) = server.posted
    assert kind == "application/json"
    assert (content["study"], content["counts"]) == ("mine", {"NOT SUBMITTED": 1})


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (500, "did not accept the message: 500 Internal Server Error"),
        (302, "did not accept the message: 302 Found (it has moved to /elsewhere)"),
        (0, "gave no answer within 1 s"),
        (1, "did not accept the message: its answer is not HTTP"),
    ],
)
def test_a_url_that_does_not_take_it_is_one_sentence(
    hpcrl: Call, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, answer: int, told: str
) -> None:
    monkeypatch.setattr("hpcrl.submit.notification.SECONDS", 0.6)
    server.answer = answer
    shown = hpcrl("notify", planned(tmp_path / "p", command_study(["true"], notify=server.url)))
    assert (shown.code, shown.err) == (1, f"hpcrl: {server.url}: {told}\n")


def test_nobody_listens_and_the_cells_are_as_they_were(
    hpcrl: Call, ready: Callable[[dict[str, Any]], Path], server: Server
) -> None:
    plan = ready(command_study(["true"], notify="http://127.0.0.1:9/x", chain="parallel"))
    shown = hpcrl("submit", plan, "--wait")
    assert shown.code == 1
    assert "1 x FAILED: hpcrl: http://127.0.0.1:9/x: cannot be reached from this node: " in shown.err
    assert states(hpcrl, plan) == {"COMPLETED": 1}


def test_one_message_however_many_rounds_of_retries(
    hpcrl: Call, ready: Callable[[dict[str, Any]], Path], server: Server, tmp_path: Path
) -> None:
    """The cell fails twice and completes the third time."""
    code = f"import sys; at = open({str(tmp_path / 'tries')!r}, 'a+'); at.write('x'); sys.exit(at.tell() < 3)"
    study = command_study([sys.executable, "-c", code], notify=server.url, retry={"failed": {"at_most": 5}})
    plan = ready(study)
    shown = hpcrl("submit", plan, "--wait", "--retry")
    assert shown.code == 0, shown
    assert (tmp_path / "tries").read_text() == "xxx"
    assert [content["counts"] for _, content in server.posted] == [{"COMPLETED": 1}]
    assert not (plan / FILE).exists()
    assert not (plan / OWED).exists()


def test_the_message_comes_too_where_the_budget_ends_the_retries(
    hpcrl: Call, ready: Callable[[dict[str, Any]], Path], server: Server
) -> None:
    plan = ready(command_study(["false"], notify=server.url, retry={"failed": {"at_most": 5}}))
    shown = hpcrl("submit", plan, "--wait", "--retry", "--max-core-hours", "0.2")
    assert shown.code == 2
    assert "over the 0.2 allowed" in shown.err
    assert [content["counts"] for _, content in server.posted] == [{"FAILED": 1}]


def test_a_message_by_hand_waits_for_nobody(hpcrl: Call, tmp_path: Path, server: Server) -> None:
    plan = planned(tmp_path / "p", command_study(["true"], notify=server.url))
    with Following(plan, lambda: None):
        assert hpcrl("notify", plan).code == 0
    assert len(server.posted) == 1


def test_who_was_killed_follows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "DEAD_SECONDS", 0.5)
    monkeypatch.setattr(following, "HEARTBEAT_SECONDS", 0.05)
    sent: list[str] = []
    assert not left_to_follower(tmp_path)
    (tmp_path / FILE).touch()
    assert not left_to_follower(tmp_path)
    with Following(tmp_path, lambda: sent.append("once")) as here:
        assert left_to_follower(tmp_path)
        here.more_follows()
        assert left_to_follower(tmp_path)
    assert sent == ["once"]
    assert not left_to_follower(tmp_path)
