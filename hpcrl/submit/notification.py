"""One message at the end of a plan: its state as JSON, to a command's standard input or to a URL."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from hpcrl.errors import HpcrlError
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import Plan, read_plan
from hpcrl.slurm.client import Slurm
from hpcrl.submit.following import left_to_follower
from hpcrl.submit.selection import Choice, Selection
from hpcrl.submit.status import plan_status
from hpcrl.submit.survey import survey

SECONDS = 60.0


def summary(directory: Path, slurm: Slurm) -> dict[str, Any]:
    """Return the message: the number of cells by outcome, the causes of failures, and the later stages' states."""
    status = plan_status(directory, slurm)
    plan = status.plan
    return {
        "plan": plan.id,
        "study": plan.study.name,
        "title": plan.study.title,
        "cluster": plan.cluster.name,
        "directory": str(directory.resolve()),
        "cells": sum(status.counts().values()),
        "counts": status.counts(),
        "causes": status.causes(),
        "stages": {stage: task.state for stage, task in status.stages.items() if stage != "notify"},
        "notes": status.notes,
        "report": str(page) if (page := directory.resolve() / "report/report.html").is_file() else None,
    }


def notify(directory: Path, slurm: Slurm) -> str:
    """Send the message to the plan's receiver; return the receiver, empty if the plan names none.

    Raises:
        HpcrlError: the command fails, or the URL does not accept it.
    """
    target = read_plan(directory).study.notify
    if not target:
        return ""
    text = json.dumps(summary(directory, slurm), indent=1, ensure_ascii=False)
    if isinstance(target, str):
        _post(target, text)
        return target
    _run(list(target), text)
    return " ".join(target)


def no_such_command(plan: Plan, directory: Path) -> str | None:
    """Return the command that gets the message if this machine does not have it; None if it has."""
    target = plan.study.notify
    if not target or isinstance(target, str):
        return None
    name = str(target[0])
    program = shutil.which(str(directory / name)) if "/" in name else shutil.which(name)
    return None if program else name


def retries_follow(directory: Path, slurm: Slurm) -> bool:
    """Tell whether a process follows this plan and will submit more: then the message is left to that process."""
    return _is_left_to_retry(directory, slurm) and left_to_follower(directory)


def _is_left_to_retry(directory: Path, slurm: Slurm) -> bool:
    plan = read_plan(directory)
    ledger = Ledger(directory)
    try:
        known = survey(directory, plan, ledger, slurm)
        selection = Selection(directory, plan, ledger, known, Choice(retry=True))
        return any(selection.of(job) for job in plan.cell_jobs())
    finally:
        ledger.close()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST becomes a GET without the message."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(url: str, text: str) -> None:
    request = urllib.request.Request(url, text.encode(), {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=SECONDS):
            pass
    except urllib.error.HTTPError as error:
        elsewhere = f" (it has moved to {error.headers['Location']})" if error.headers.get("Location") else ""
        raise HpcrlError(f"{url}: did not accept the message: {error.code} {error.reason}{elsewhere}") from None
    except HTTPException:
        raise HpcrlError(f"{url}: did not accept the message: its answer is not HTTP") from None
    except (OSError, ValueError) as error:
        if isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError):
            raise HpcrlError(f"{url}: gave no answer within {SECONDS:.0f} s") from None
        raise HpcrlError(f"{url}: cannot be reached from this node: {getattr(error, 'reason', error)}") from None


def _run(command: Sequence[str], text: str) -> None:
    try:
        done = subprocess.run(list(command), input=text, text=True, capture_output=True, timeout=SECONDS, check=False)
    except OSError as error:
        raise HpcrlError(f"{command[0]}: cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise HpcrlError(f"{command[0]}: did not end within {SECONDS:.0f} s") from None
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).split())[-300:]
        raise HpcrlError(f"{command[0]}: ended with exit code {done.returncode}{f': {words}' if words else ''}")
