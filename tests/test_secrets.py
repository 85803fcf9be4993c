"""What names say that a value must not stand in a file, and what a record takes of a job's variables."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hpcrl.errors import HpcrlError
from hpcrl.secrets import looks_secret, secret_among, without_password
from hpcrl.spec.notify import read_notify
from hpcrl.spec.study import Study
from hpcrl.telemetry.provenance import numeric_variables

SECRET = (
    "TOKEN", "PASSWD", "PASSWORD", "DB_PASS", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "APIKEY", "API_KEY", "WANDB_API_KEY",
    "GITHUB_PAT", "GH_TOKEN", "DATABASE_URL", "HF_TOKEN", "TF_TOKEN_app_terraform_io", "HOROVOD_SECRET_KEY", "SSH_PRIVATE_KEY",
    "NETRC", "SLACK_WEBHOOK", "AZURE_STORAGE_CONNECTION_STRING", "SENTRY_DSN", "GOOGLE_CREDENTIALS", "SESSION_ID", "JWT", "MYSQL_PWD",
)  # fmt: skip
HARMLESS = (
    "PWD", "OLDPWD", "PATH", "OMP_NUM_THREADS", "HPCRL_ENVIRONMENTS", "CUDA_VISIBLE_DEVICES", "XLA_FLAGS", "KEYBOARD", "AUTHOR",
    "PATTERN", "TASK", "MKL_CBWR",
)  # fmt: skip


@pytest.mark.parametrize("name", [*SECRET, *(each.lower() for each in SECRET)])
def test_a_secret_s_name(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_name(name: str) -> None:
    assert not looks_secret(name)


def test_a_record_takes_what_changes_results_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"OPENBLAS_CORETYPE": "Haswell", "TF_ENABLE_ONEDNN_OPTS": "0", "XLA_FLAGS": "--x", "JAX_ENABLE_X64": "1"}
    others = (*SECRET, "TF_TOKEN", "JAX_COORDINATOR", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "TORCH_HOME", "OMPI_MCA_orte_precondition_transports",
              "MKL_TOKEN")  # fmt: skip
    for name, value in {**wanted, **dict.fromkeys(others, "s3cr3t")}.items():
        monkeypatch.setenv(name, value)
    found = numeric_variables()
    assert {name: found.get(name) for name in wanted} == wanted
    assert not set(others) & set(found)
    assert "s3cr3t" not in found.values()


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--password", "hunter2"], ["train", "--token=s3cr3t"], ["train", "--db.password=x"], ["x", "--api-key", "abc"],
        ["x", "--wandb_api_key=abc"], ["x", "--apikey", "abc"], ["x", "-token", "abc"], ["x", "auth.token=abc"],
        ["env", "WANDB_API_KEY=abc", "x"], ["bash", "-c", "GH_TOKEN=abc python x.py"], ["bash", "-c", "cd a; x --password 'y'"],
        ["git", "clone", "https://user:pass@host/x"], ["x", "--db=postgres://u:pw@h/d"], ["curl", "https://h/?access_token=abc&x=1"],
        ["git", "clone", "https://ghs0123456789abcdef@host/x"], ["curl", "-H", "Authorization: Bearer abc"],
        ["x", "hf_abcdefghijklmnopqrstuvwx"], ["x", "--id", "AKIAABCDEFGHIJKLMNOP"], ["redis", "redis://:pw@h"],
    ],
)  # fmt: skip
def test_a_secret_on_a_command_line(words: list[str]) -> None:
    found = secret_among(words)
    assert found
    for value in ("hunter2", "s3cr3t", "abc", "pass@", "0123456789", "AKIA"):
        assert value not in found


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--key-bindings", "vim"], ["x", "--tokenizer", "gpt2"], ["x", "--max-tokens", "512"], ["x", "--max_tokens=512"],
        ["x", "--token-file", "/run/x"], ["x", "--token", "$TOKEN"], ["x", "--password=${PW}"], ["x", "--password-file=x"],
        ["x", "--token", "/run/secrets/t"], ["x", "--token", "--verbose"], ["x", "--num-token", "12"], ["x", "--path", "a"],
        ["git", "clone", "ssh://git@host/x"], ["x", "https://host:8080/a@b"], ["x", "https://u:$PW@host"], ["x", "--compat", "y"],
        ["x", "--author", "me"], ["x", "--keys", "a"], ["mpirun", "-n", "4", "x"], ["x", "--private", "yes"], ["x", "--token"],
        ["x", "--secret={secret}"], ["python", "-c", "print(1)"], ["x", "model.tokenizer=gpt2"], ["x", "--pattern=a*"], ["x", "KEYS=a"],
    ],
)  # fmt: skip
def test_a_harmless_command_line(words: list[str]) -> None:
    assert secret_among(words) is None


def test_a_study_with_a_secret_in_its_command_is_refused_and_the_value_not_repeated() -> None:
    study = {"name": "x", "title": "X", "workload": {"command": ["train", "--password", "hunter2"]}}
    env = {"name": "x", "title": "X", "workload": {"command": ["train"], "env": {"REPOSITORY": "https://me:hunter2@h"}}}
    told = study | {"workload": {"command": ["train"]}, "notify": ["curl", "--token=hunter2", "h"]}
    for each in (study, env, told):
        with pytest.raises(
            ValidationError, match="looks like a secret: remove it from the study, export it in your shell"
        ) as refused:
            Study.model_validate(each)
        assert "hunter2" not in refused.value.errors()[0]["msg"]
    for text in ("mail --password hunter2", "https://h/?token=hunter2"):
        with pytest.raises(HpcrlError, match="looks like a secret"):
            read_notify(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:secret@host:5000/a: not there", "http://host:5000/a: not there"),
        ("https://t0k@host and http://me:a/b@c@host", "https://host and http://host"),
        ("http://host:5000/a", "http://host:5000/a"),
        ("sqlite:////home/me@lab/s.db", "sqlite:////home/me@lab/s.db"),
        ("runs@home", "runs@home"),
    ],
)
def test_an_address_is_shown_without_its_password(text: str, shown: str) -> None:
    assert without_password(text) == shown
