"""The few calls of MLflow's REST API that a cell needs while it trains.

MLflow's own client and its dependencies are not in the environments of cells: the cost is then the same in every environment.
Source: https://mlflow.org/docs/latest/api_reference/rest-api.html
"""

from __future__ import annotations

import base64
import configparser
import json
import random
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import SplitResult, unquote, urlencode, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.mlflow import ADDRESS, KEY, PARAMETERS_AT_ONCE, PARENT, key_of_parent, name_of_parent

_SECONDS = 10.0  # for one call
_MOST_BYTES = 1024**2  # of an answer
_LONGEST = 300  # characters of what a server says
_PARENT_SECONDS = (
    1.0,
    4.0,
)  # for which a cell waits for the parent run of its study, drawn evenly: cells may begin at once
_AGAIN_SECONDS = 0.25
_CREDENTIALS = ".mlflow/credentials"  # below the home directory, as MLflow's own client has it


class MlflowError(HpcrlError):
    """A server of MLflow does not answer, or refuses something."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code  # the server's own word for it


@dataclass(frozen=True)
class Named:
    """What a run is called, and which attempt it is. `search` is the name of the journal of the search that it belongs to."""

    study: str
    name: str
    key: str
    started: int  # Unix milliseconds
    parameters: Mapping[str, str] = field(default_factory=dict)
    search: str = ""


class _NoRedirects(HTTPRedirectHandler):
    """Another host would get the password, and a redirected POST loses its content."""

    def redirect_request(self, asked: Any, answer: Any, code: int, text: str, headers: Any, address: str) -> None:
        raise HTTPError(asked.full_url, code, f"it redirects to {address}: set that address", headers, None)


class Server:
    """A server of MLflow.

    Args:
        environment: the variables by which MLflow's own client finds it: address, user and password, or token, and certificate.

    Raises:
        UsageError: there is no address, or it is none of a server.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        parts = _address(environment.get(ADDRESS, ""))
        self.address = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        self.deadline = float("inf")  # time.monotonic(), after which no call begins or waits
        self._headers = {"Content-Type": "application/json", **_authorization(environment, parts)}
        context = None
        if parts.scheme == "https":
            try:
                context = ssl.create_default_context(cafile=environment.get("MLFLOW_TRACKING_SERVER_CERT_PATH"))
            except OSError as error:
                raise UsageError(f"MLFLOW_TRACKING_SERVER_CERT_PATH: {error.strerror or error}") from None
            if environment.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
        self._opener = build_opener(_NoRedirects, HTTPSHandler(context=context))

    def begin(self, named: Named) -> str:
        """Return the id of an attempt's run; make it, its study's experiment and the parent run of its plan or search where they are missing.

        Raises:
            MlflowError: the server does not answer, or refuses.
        """
        experiment, new = self._experiment(named.study)
        parent = self._parent(experiment, new, named)
        run = self._find(experiment, named.key) or self._made(experiment, named, parent)
        given = [{"key": name, "value": value} for name, value in named.parameters.items()]
        for first in range(0, len(given), PARAMETERS_AT_ONCE):
            self._post("runs/log-batch", run_id=run, params=given[first : first + PARAMETERS_AT_ONCE])
        return run

    def log(self, run: str, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Add points of metrics, which are mappings of key, value, timestamp (Unix milliseconds) and step.

        Raises:
            MlflowError: the server does not answer, or refuses.
        """
        if len(metrics) == 1:
            self._post("runs/log-metric", run_id=run, **metrics[0])
        else:
            self._post("runs/log-batch", run_id=run, metrics=list(metrics))

    def end(self, run: str, status: str, time: int) -> None:
        """Close a run with MLflow's word for its outcome.

        Raises:
            MlflowError: the server does not answer, or refuses.
        """
        self._post("runs/update", run_id=run, status=status, end_time=time)

    def _experiment(self, name: str) -> tuple[str, bool]:
        """Return the id of an experiment, and whether this call made it: the server lets only one do so."""
        if (experiment := self._experiment_of(name)) is None:
            try:
                return self._picked(self._post("experiments/create", name=name), "experiment_id"), True
            except MlflowError as error:  # another cell made it in the meantime
                if error.code != "RESOURCE_ALREADY_EXISTS" or (experiment := self._experiment_of(name)) is None:
                    raise
        return experiment, False

    def _experiment_of(self, name: str) -> str | None:
        try:
            answer = self._call("GET", "experiments/get-by-name", {"experiment_name": name})
        except MlflowError as error:
            if error.code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return self._picked(answer, "experiment", "experiment_id")

    def _parent(self, experiment: str, new: bool, child: Named) -> str:
        """Return the parent of a run. Who made the experiment makes it, and others wait for it a while before they do.

        If two make one nevertheless, the older one is kept.
        """
        key = key_of_parent(child.study, child.key, child.search)
        until = time.monotonic() + (0 if new else random.uniform(*_PARENT_SECONDS))
        while (run := self._find(experiment, key)) is None and time.monotonic() < until:
            time.sleep(_AGAIN_SECONDS)
        if run is not None:
            return run
        own = self._made(experiment, Named(child.study, name_of_parent(child.study, child.search), key, _now()))
        self.end(own, "FINISHED", _now())
        run = self._find(experiment, key) or own
        if run != own:
            self._post("runs/delete", run_id=own)
        return run

    def _made(self, experiment: str, named: Named, parent: str | None = None) -> str:
        tags = [{"key": KEY, "value": named.key}] + [{"key": PARENT, "value": parent}] * (parent is not None)
        made = self._post(
            "runs/create", experiment_id=experiment, run_name=named.name, start_time=named.started, tags=tags
        )
        return self._picked(made, "run", "info", "run_id")

    def _find(self, experiment: str, key: str) -> str | None:
        """Return the oldest run with a key; None if there is none."""
        answer = self._post(
            "runs/search",
            experiment_ids=[experiment],
            filter=f"tags.`{KEY}` = '{key}'",
            order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
            max_results=1,
        )
        return self._picked(answer, "runs", 0, "info", "run_id") if answer.get("runs") else None

    def _picked(self, answer: Any, *path: str | int) -> str:
        """Return a part of an answer."""
        try:
            for step in path:
                answer = answer[step]
            return str(answer)
        except (KeyError, IndexError, TypeError):
            raise MlflowError(f"MLflow at {self.address}: the answer is not MLflow's (no {path[-1]})") from None

    def _post(self, call: str, **content: Any) -> dict[str, Any]:
        return self._call("POST", call, content)

    def _call(self, method: str, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
        address, data = f"{self.address}/api/2.0/mlflow/{name}", None
        if method == "GET":
            address += f"?{urlencode(content)}"
        else:
            data = json.dumps(content).encode()
        left = min(_SECONDS, self.deadline - time.monotonic())
        try:
            if left <= 0:
                raise TimeoutError("no answer in time")
            asked = Request(address, data, self._headers, method=method)
            with self._opener.open(asked, timeout=left) as answer:
                reply = json.loads(_read(answer, time.monotonic() + left) or b"{}")
            if not isinstance(reply, dict):
                raise ValueError("it is not a JSON object")
            return reply
        except HTTPError as error:
            text, code = _said(error)
        except OSError as error:
            reason = getattr(error, "reason", error)
            text, code = getattr(reason, "strerror", None) or str(reason), ""
        except (ValueError, HTTPException, RecursionError) as error:
            text, code = f"the answer is not MLflow's ({type(error).__name__}: {error})", ""
        text = " ".join(text.split()).rstrip(".")
        raise MlflowError(f"MLflow at {self.address}: {text[:_LONGEST]}", code)


def _address(given: str) -> SplitResult:
    """Return the parts of the address of a server.

    Raises:
        UsageError: it is none.
    """
    try:
        parts = urlsplit(given)
        # An @ after the host is the rest of a password with a slash in it, which must not be shown.
        known = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.path and parts.port != 0
    except ValueError:  # also of a port that is no number
        known = False
    if not known:
        what = "is not set" if not given else "is not the address of a server"
        raise UsageError(
            f"{ADDRESS} {what}: set it to http://HOST:PORT in the environment of the jobs, or in the study's workload.env, "
            "because `tracking` sends values to a server of MLflow"
        )
    return parts


def _authorization(environment: Mapping[str, str], parts: SplitResult) -> dict[str, str]:
    """Return the header with what a server wants to know of its user: from variables, the address, or MLflow's file of credentials."""
    file = configparser.ConfigParser(interpolation=None)
    try:
        file.read_string((Path.home() / _CREDENTIALS).read_text())
    except (OSError, ValueError, RuntimeError, configparser.Error):
        file.read_string("[mlflow]")

    def given(name: str, in_address: str | None = None) -> str:
        return (
            environment.get(name) or unquote(in_address or "") or file.get("mlflow", name.lower(), fallback=None) or ""
        )

    if token := given("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    user = given("MLFLOW_TRACKING_USERNAME", parts.username)
    if not user:
        return {}
    both = f"{user}:{given('MLFLOW_TRACKING_PASSWORD', parts.password)}"
    return {"Authorization": f"Basic {base64.b64encode(both.encode()).decode()}"}


def _read(answer: Any, deadline: float) -> bytes:
    """Read an answer, of which a server may give one byte at a time."""
    parts, size = [], 0
    while part := answer.read1(_MOST_BYTES):
        parts.append(part)
        size += len(part)
        if size > _MOST_BYTES:
            raise ValueError("it is too long")
        if time.monotonic() > deadline:
            raise TimeoutError("no whole answer in time")
    return b"".join(parts)


def _said(error: HTTPError) -> tuple[str, str]:
    """Return a refusal's text and MLflow's word for it."""
    try:
        told = json.loads(_read(error, time.monotonic() + _SECONDS))
        return str(told["message"]), str(told.get("error_code", ""))
    except (OSError, ValueError, HTTPException, KeyError, TypeError, AttributeError, RecursionError):
        return f"{error.code} {error.reason}", ""


def _now() -> int:
    return int(time.time() * 1000)
