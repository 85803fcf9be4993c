"""The user's own settings, which are in no profile: account, e-mail, directory of environments, emissions of the grid."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from hpcrl.errors import UsageError
from hpcrl.spec.document import read_document, validate
from hpcrl.spec.notify import Notify

Account = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.@+-]+$", max_length=128)]


_EMAIL = r"^[^\s\"'$`\\@]+@[^\s\"'$`\\@]+$"


class UserSettings(BaseModel):
    """``~/.config/hpcrl/config.yaml``; `accounts` by cluster, `grid_intensity` in grams of CO2 equivalent per kilowatt-hour."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    accounts: dict[str, Account] = {}
    email: Annotated[str, StringConstraints(pattern=_EMAIL)] | None = None
    environments_root: str | None = None
    notify: Notify | None = None
    grid_intensity: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


def config_directory() -> Path:
    """Return the user's configuration directory for hpcrl (XDG)."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "hpcrl"


def read_settings() -> UserSettings:
    """Read the user's settings. They are empty if the file does not exist."""
    path = config_directory() / "config.yaml"
    return validate(UserSettings, read_document(path)) if path.is_file() else UserSettings()


def account_for(cluster: str, given: str | None, settings: UserSettings) -> str | None:
    """Choose the account: the option, ``$HPCRL_ACCOUNT``, then the settings.

    Raises:
        UsageError: the text is not a valid name of an account.
    """
    account = given or os.environ.get("HPCRL_ACCOUNT") or settings.accounts.get(cluster)
    if account is not None and not re.fullmatch(r"[A-Za-z0-9_.@+-]{1,128}", account):
        raise UsageError(f"account {account!r}: not a valid Slurm account: use letters, digits and _ . @ + -")
    return account


def email_for(given: str | None, settings: UserSettings) -> str | None:
    """Choose the address that Slurm writes to: the option, then the settings.

    Raises:
        UsageError: the option is not an e-mail address.
    """
    if given is not None and not re.fullmatch(_EMAIL, given):
        raise UsageError(f"--email {given!r}: is not an e-mail address such as me@example.org")
    return given or settings.email
