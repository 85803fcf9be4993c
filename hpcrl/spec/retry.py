"""What `hpcrl submit --retry` runs again, by cause."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from hpcrl.spec.resources import Model


def _factor(value: Any) -> float:
    if not isinstance(value, str) or not (match := re.fullmatch(r"x(\d{1,3}(?:\.\d{1,6})?)", value.strip())):
        raise ValueError(f'"{value}" is not a factor; try x2 or x1.5')
    if not 1 < float(match[1]) <= 10:
        raise ValueError(f'"{value}" is not a factor between x1 and x10; try x2 or x1.5')
    return float(match[1])


Factor = Annotated[
    float, BeforeValidator(_factor, json_schema_input_type=Annotated[str, Field(pattern=r"^x[0-9]+(\.[0-9]+)?$")])
]


class Again(Model):
    """How a cell that ended for one cause runs again: factors for time and memory, and the maximum number of attempts."""

    time: Factor | None = Field(None, description="factor for the time limit, such as x2")
    memory: Factor | None = Field(None, description="factor for the memory, such as x1.5")
    at_most: int = Field(1, ge=0, le=100, strict=True, description="maximum number of further attempts for this cause")


class AgainElsewhere(Again):
    exclude_node: bool = Field(False, description="whether the next attempt avoids the node that failed")


class Retry(Model):
    """What `hpcrl submit --retry` runs again, by cause. A cause without an entry is not retried."""

    timeout: Again | None = None
    oom: Again | None = None
    node_fail: AgainElsewhere | None = None
    preempted: Again | None = None
    failed: Again | None = None
