"""What the C library keeps, counted by the kernel's page faults."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from hpcrl.formats.facts import Asked
from hpcrl.rl.distributed.group import Group
from hpcrl.run.training import before_import

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def update():
    arrays = [np.ones(400_000) for _ in range(4)]  # 782 pages each: no hole that imports left holds them

if "kept" in sys.argv:
    before_import(["numpy"], Asked(1, 1024, 60), Group())
for _ in range(10):
    update()
before = faults()
for _ in range(100):
    update()
print(faults() - before)
"""


@pytest.mark.parametrize(
    ("arguments", "variables", "kept"),
    [
        (["kept"], {}, True),
        (["kept"], {"MALLOC_ARENA_MAX": "4", "GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}, True),
        ([], {}, False),
        (["kept"], {"MALLOC_MMAP_THRESHOLD_": "100000"}, False),
        (["kept"], {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=100000"}, False),
    ],
)
def test_arrays_of_an_update_get_the_memory_of_the_one_before(
    arguments: list[str], variables: dict[str, str], kept: bool
) -> None:
    """Without it each array of each update faults its pages in; a user's own thresholds stay, and other settings of the allocator do not matter."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env=own | variables, capture_output=True, text=True, check=True
    )
    assert (int(done.stdout) < 100) == kept
