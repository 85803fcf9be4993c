"""Values of a study from the command line: ``--set resources.time=02:00:00``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcrl.errors import UsageError
from hpcrl.spec.document import Document, Origin, read_value
from hpcrl.spec.explain import Key


def overridden(document: Document, settings: Sequence[str]) -> Document:
    """Set values of a document from ``key=value`` texts, later ones last. Values are YAML, and the text becomes their origin.

    Raises:
        UsageError: a text is not ``key=value``, its value is not YAML, or its key leads into a list or a plain value.
    """
    for text in settings:
        where = f"--set {text}"
        key, sign, value = text.partition("=")
        path: Key = tuple(part.strip() for part in key.split("."))
        if not sign or not all(path):
            raise UsageError(f"{where}: expected KEY=VALUE, such as seeds=10 or resources.time=02:00:00")
        inner: Any = document.data
        for number, part in enumerate(path[:-1], 1):
            inner = inner.get(part, {})
            if not isinstance(inner, dict):
                raise UsageError(f"{where}: {'.'.join(map(str, path[:number]))} is not a mapping: set the whole value")
        data: Any = read_value(value, where)
        for part in reversed(path):
            data = {part: data}
        document = Document(data, {path: Origin(where, 0)}).merged_over(document)
    return document
