"""The cell's values in a command line or an environment variable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Replace each ``{name}`` by its value; what is not in `values` stays as it is."""
    return _PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), text)
