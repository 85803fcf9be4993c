"""Check the owner of environments, because their code runs as the caller, and other users may write to a shared root."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Sequence
from pathlib import Path

from hpcrl.errors import HpcrlError


def check_owner(path: Path, owners: Sequence[str] = ()) -> None:
    """Check that a file or directory belongs to a trusted user, and that only this user and the group may write to it.

    Args:
        owners: names of trusted users, besides the caller and root.

    Raises:
        HpcrlError: it belongs to another user, or everybody may write to it.
    """
    about = path.lstat()
    if about.st_uid not in {os.getuid(), 0, *_uids(owners)}:
        why = f"belongs to {_name(about.st_uid)}"
        more = ", or let the profile's environments.owners name its owner if you trust them"
    elif about.st_mode & stat.S_IWOTH and not stat.S_ISLNK(about.st_mode):
        why, more = "everybody may write to it", ", or ask its owner to run chmod o-w on it"
    else:
        return
    raise HpcrlError(
        f"{path}: {why}, and its programs would run as you: set HPCRL_ENVIRONMENTS to your own directory{more}"
    )


def _uids(owners: Sequence[str]) -> set[int]:
    uids = set()
    for name in owners:
        try:
            uids.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue  # no such user on this machine
    return uids


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
