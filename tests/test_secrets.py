"""What names say that a value must not stand in a file, and what a record takes of a job's variables."""

from __future__ import annotations

import pytest

from hpcrl.secrets import looks_secret
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
