"""Writing files so that nobody ever reads half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hpcrl.errors import HpcrlError


def write_atomically(path: Path, content: str | bytes, executable: bool = False) -> None:
    """Write a whole file or nothing: into a temporary neighbour first, then renamed.

    Raises:
        HpcrlError: the directory cannot be written or the disk is full; what stood there still does.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(temporary, 0o755 if executable else 0o644)  # noqa: PTH101
            os.replace(temporary, path)  # noqa: PTH105
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise HpcrlError(f"{path}: cannot be written: {error.strerror}; nothing was left half-written") from None
