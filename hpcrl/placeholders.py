"""The cell's values in a command line or an environment variable.

``{name}`` is a placeholder. ``{{name}}`` is the text ``{name}``, and ``${...}`` is left to the user's own shell. Any
other brace is plain text, so that JSON can be written as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_MARK = re.compile(r"\$\{|\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Replace each placeholder by its value; a name that is not in `values` stays unchanged."""

    def replacement(match: re.Match[str]) -> str:
        literal, name = match.groups()
        if literal:
            return f"{{{literal}}}"
        return str(values.get(name, match[0])) if name else match[0]

    return _MARK.sub(replacement, text)


def placeholders(text: str) -> list[str]:
    """Return the names of a text's placeholders."""
    return [match[2] for match in _MARK.finditer(text) if match[2]]
