"""Compare the values of a successful workload with those that its study expects."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

from hpcrl.expected import unexpected
from hpcrl.run.training import Ended


def judged(
    ended: Ended, expected: Mapping[str, Mapping[str, float | str]], values: Mapping[str, float | None]
) -> Ended:
    """Return how the workload ended: failed, with expected and actual value, if a value is not as expected."""
    wrong = [
        said for name, expectation in expected.items() if (said := unexpected(name, expectation, values.get(name)))
    ]
    if not wrong:
        return ended
    print(f"hpcrl: {'; '.join(wrong)}", file=sys.stderr)
    return replace(ended, outcome="failed", reason="; ".join(wrong))
