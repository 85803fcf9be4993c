"""Write files so that nobody reads an incomplete one, and read only regular files, never a link, FIFO or device.

New files have the modes that the user's umask gives, so that a group may share a plan.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Literal, TextIO, overload

from hpcrl.errors import HpcrlError

MAX_FILE = 1024**3  # bytes of a text file of a plan or dataset
# The errors of a file system without hard links.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


# No directory above, no other directory, no control character.
_PLAIN = re.compile(r"[^./\\\x00-\x1f\x7f-\x9f][^/\\\x00-\x1f\x7f-\x9f]{0,199}")
_ODD = re.compile(r"[^\w. =,+-]", re.ASCII)
_SHORT = 150  # characters; a file system takes 255 bytes, and names get endings


def is_plain_name(name: str) -> bool:
    """Tell whether a file of this name stays in its directory."""
    return bool(_PLAIN.fullmatch(name))


def plain_name(text: str) -> str:
    """Return the name of a file or directory for any text: the text if it is short and plain, else its harmless part and a digest.

    Two texts have two names, and each stays in its directory.
    """
    if text.isascii() and len(text) <= _SHORT and is_plain_name(text):
        return text
    kept = _ODD.sub("_", text).lstrip(".")[:_SHORT]
    return f"{kept}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def private(path: str, flags: int) -> int:
    """Open a file that only its owner can read from its first moment on: an `opener` of :func:`open`."""
    return os.open(path, flags, 0o600)


def write_atomically(
    path: Path,
    content: str | bytes | Iterable[bytes],
    executable: bool = False,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write a whole file or nothing: into a temporary neighbour first, then renamed. Large content may come in pieces.

    Args:
        check: called before the file is renamed; an error leaves the older file unchanged.

    Raises:
        HpcrlError: the directory cannot be written or the disk is full; an older file is unchanged.
    """
    text = content.encode() if isinstance(content, str) else content
    pieces = [text] if isinstance(text, bytes) else text
    try:
        _check_replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = _new_neighbour(path, 0o777 if executable else 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(pieces)
            check()
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        if blocking := next((parent for parent in path.parents if parent.is_file()), None):
            raise HpcrlError(
                f"{path}: cannot be written, because {blocking} is a file: choose another directory, or move that file"
            ) from None
        raise HpcrlError(f"{path}: cannot be written: {error.strerror}; no half-written file was left") from None


def check_writable(path: Path) -> None:
    """Check before long work that its result can be written.

    Raises:
        HpcrlError: it is a directory, or its directory cannot be written.
    """
    try:
        _check_replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = _new_neighbour(path, 0o600)
        os.close(handle)
        temporary.unlink()
    except OSError as error:
        raise HpcrlError(f"{path}: cannot be written: {error.strerror}") from None


def create_exclusively(path: Path, content: str) -> bool:
    """Create a whole file that nobody else has created; return False where it exists already.

    Of any number of callers, on any number of hosts, exactly one gets True. The file appears with its content: it is
    written under another name and then linked. link() is atomic on NFS and Lustre; its answer may get lost there and
    the repeated request then says "exists", so the count of links decides.

    Raises:
        OSError: the directory cannot be written, or the disk is full.
    """
    handle, temporary = _new_neighbour(path, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return temporary.stat().st_nlink == 2
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _create_without_links(path, content)
        return True
    finally:
        with suppress(OSError):
            temporary.unlink()


def _check_replaceable(path: Path) -> None:
    """Check that a file may take the place of what is at a path.

    Raises:
        OSError: that is a directory or a device, or leads to one.
    """
    with suppress(FileNotFoundError):
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if kind in (stat.S_IFCHR, stat.S_IFBLK):
            raise OSError(errno.EINVAL, "it is a device")


def _new_neighbour(path: Path, mode: int) -> tuple[int, Path]:
    """Create a file beside another one, for its content. `tempfile` would let only the owner read it."""
    while True:
        place = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        with suppress(FileExistsError):
            return os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode), place


@overload
def open_of_stranger(path: Path, mode: Literal["r"] = "r", most: int = MAX_FILE) -> TextIO: ...
@overload
def open_of_stranger(path: Path, mode: Literal["rb"], most: int = MAX_FILE) -> BufferedReader: ...
def open_of_stranger(path: Path, mode: str = "r", most: int = MAX_FILE) -> TextIO | BufferedReader:
    """Open a file of untrusted origin for reading, text as UTF-8.

    All files of plans and datasets are opened by this function. It never waits for a FIFO, reads no device and follows no link.

    Args:
        most: the maximum size in bytes.

    Raises:
        OSError: the file cannot be read, is not a regular file (``EINVAL``), is a link (``ELOOP``) or is too large
            (``EFBIG``); ``strerror`` says it as the end of a sentence.
    """
    encoding = None if "b" in mode else "utf-8"

    def opener(path: str, flags: int) -> int:
        handle = opener_of_stranger(path, flags)
        if (size := os.fstat(handle).st_size) > most:
            os.close(handle)
            raise OSError(errno.EFBIG, f"it has {size} bytes, but the maximum is {most}", path)
        return handle

    return open(path, mode, encoding=encoding, opener=opener)  # type: ignore[return-value]


def opener_of_stranger(path: str, flags: int) -> int:
    """Open a regular file that is not a link: an `opener` of :func:`open` and :class:`io.FileIO`."""
    try:
        handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", path) from None
        if error.errno == errno.ENXIO:
            raise OSError(errno.EINVAL, "it is not a regular file", path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return handle


def _create_without_links(path: Path, content: str) -> bool:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        return False
    return True


def server_time(directory: Path) -> float:
    """Return the time of the clock that sets the times of a directory's files: one clock for all hosts that share it.

    Raises:
        OSError: nothing can be created there.
    """
    handle, name = tempfile.mkstemp(prefix=".clock-", dir=directory)
    try:
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)
        Path(name).unlink()
