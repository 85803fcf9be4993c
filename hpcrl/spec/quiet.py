"""Code of others without its warnings, from any thread."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# The filters belong to the whole process: two threads that replaced them at once could leave "ignore" behind.
_ONE = threading.RLock()


@contextmanager
def without_warnings() -> Iterator[None]:
    """Ignore warnings; one thread at a time."""
    with _ONE, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
