"""An estimate and its interval in words."""

from __future__ import annotations

from hpcrl.report.design import in_short
from hpcrl.report.statistics import Estimate

INTERVAL = "95 % interval"


def span(estimate: Estimate) -> str:
    """Write the interval of an estimate that has one: `9.87 to 10.1`."""
    return f"{in_short(estimate.low or 0.0)} to {in_short(estimate.high or 0.0)}"


def with_interval(estimate: Estimate, unit: str = "", name: str = INTERVAL) -> str:
    """Write an estimate with its interval, or with the reason why it has none: `10.0 s (95 % interval 9.87 to 10.1)`."""
    if estimate.low is None or estimate.high is None:
        told = "one run"
    else:
        told = "too few runs for an interval" if estimate.is_open else f"{name} {span(estimate)}"
    return f"{in_short(estimate.value)}{unit} ({told})"
