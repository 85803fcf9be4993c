"""NumPy has no layers of its own."""

from __future__ import annotations

from hpcrl.errors import UsageError
from hpcrl.rl.interfaces import Network, Weights


def framework_weights(network: Network, seed: int) -> Weights:
    """Refuse: there is no default initialiser.

    Raises:
        UsageError: always.
    """
    raise UsageError("numpy: has no default initialiser: leave numpy out if `defaults` is framework")
