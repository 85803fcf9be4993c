"""Writing files so that nobody ever reads half of one."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from hpcrl.errors import HpcrlError

# What a file system answers that has no hard links.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


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


def create_exclusively(path: Path, content: str) -> bool:
    """Create a whole file that nobody else has created; return False where it exists already.

    Of any number of callers, on any number of hosts, exactly one gets True. The file appears with its content: it is
    written under another name and then linked. link() is atomic on NFS and Lustre; its answer may get lost there and
    the repeated request then says "exists", so the count of links decides.

    Raises:
        OSError: the directory cannot be written, or the disk is full.
    """
    handle, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return Path(temporary).stat().st_nlink == 2
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _create_without_links(path, content)
        return True
    finally:
        with suppress(OSError):
            Path(temporary).unlink()


def _create_without_links(path: Path, content: str) -> bool:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        return False
    return True


def server_time(directory: Path) -> float:
    """Return the time by the clock that stamps the files of a directory: one clock for all hosts that share it.

    Raises:
        OSError: nothing can be created there.
    """
    handle, name = tempfile.mkstemp(prefix=".clock-", dir=directory)
    try:
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)
        Path(name).unlink()
