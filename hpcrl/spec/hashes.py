"""The digests of an environment's packages: ``envs/hashes/NAME.txt``, written by `hpcrl env lock`."""

from __future__ import annotations

import re
from pathlib import Path

from hpcrl.errors import SpecError, UsageError
from hpcrl.pins import name_of, read_requirements
from hpcrl.spec.document import display


def read_hashes(file: Path) -> dict[str, tuple[str, ...]]:
    """Read the allowed SHA-256 digests of each pin, by ``name==version``.

    Raises:
        SpecError: a line is not a pin with hashes, with file and line.
        UsageError: the file cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{display(file)}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    hashes: dict[str, tuple[str, ...]] = {}
    number = 1
    for lines in re.split(r"(?<!\\)\n", text):
        for requirement in read_requirements(lines):
            try:
                name = name_of(requirement.pin)
                if not requirement.hashes:
                    raise ValueError(f"{requirement.pin}: expected --hash=sha256: and 64 hexadecimal digits")
            except ValueError as error:
                raise SpecError(
                    [f"{display(file)}:{number}: {error}: write the file again with `hpcrl env lock`"]
                ) from None
            hashes[name] = (*hashes.get(name, ()), *requirement.hashes)
        number += lines.count("\n") + 1
    return hashes
