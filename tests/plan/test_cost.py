"""What a site counts for a cell, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrl.plan.cost import Cost, cost
from hpcrl.plan.placement import Placement, place
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.library import Library
from hpcrl.spec.resources import Resources
from hpcrl.spec.study import Pin

PROFILES = {name: Library().cluster(name) for name in ("sol", "cirrus", "cirrus-legacy")}


def costs(profile: str | ClusterProfile, pin: Pin | None = None, **changes: Any) -> Cost:
    known = PROFILES[profile] if isinstance(profile, str) else profile
    asked = Resources.model_validate({"memory": "4G", "time": "02:00:00", "tasks": 1, **changes})
    spot = place(known, asked, pin or Pin())
    assert isinstance(spot, Placement), spot
    return cost(known, spot, asked)


@pytest.mark.parametrize(
    ("qos", "factor"), [("standard", 1.0), ("highpriority", 1.5), ("lowpriority", 0.0), ("short", 1.0)]
)
def test_the_charge_factor_of_a_qos(qos: str, factor: float) -> None:
    # Cirrus: 2,666 MiB come with a core, so that 4 GiB are two cores, for a quarter of an hour.
    found = costs("cirrus", Pin(qos=qos), time="00:15:00")
    assert (found.core_hours, found.billed) == (0.5, 0.5 * factor)


def test_cores_of_all_ranks_for_all_hours() -> None:
    assert costs("sol", cpus=3, tasks=4, memory="1G").core_hours == 3 * 4 * 2
    # Sol: a core-hour for each core and for each 4 GiB; an A100 counts 25.
    assert costs("sol", cpus=3, tasks=4, memory="1G").billed == (12 + 4 / 4) * 2
    found = costs("sol", cpus=1, gpus=2, gpu_type="a100", tasks=2, memory="8G")
    assert (found.gpu_hours, found.billed) == (4, (2 + 16 / 4 + 50) * 2)


def test_whole_nodes_are_paid_whole() -> None:
    by_node = PROFILES["cirrus"].model_copy(update={"allocation_unit": "node"})
    assert costs(by_node, cpus=1).core_hours == 288 * 2
    assert costs("cirrus", cpus=1, nodes=2, tasks=2).core_hours == 2 * 288 * 2  # several nodes of Cirrus are had whole


def test_idle_gpus_of_whole_nodes_are_paid() -> None:
    found = costs("cirrus-legacy", cpus=13, gpus=3, tasks=3, exclusive=True)
    assert (found.core_hours, found.gpu_hours) == (40 * 2, 4 * 2)
    # Sol counts 25 for an A100: all four of a whole node, with its 48 cores and the memory that was asked for.
    whole = costs("sol", gpus=1, gpu_type="a100", memory="8G", exclusive=True)
    assert (whole.gpu_hours, whole.billed) == (4 * 2, (48 + 8 / 4 + 100) * 2)


def test_cores_come_with_gpus() -> None:
    """The old Cirrus gave ten cores with each V100."""
    legacy = PROFILES["cirrus-legacy"]
    assert costs(legacy, cpus=1, gpus=2, gpu_type="v100", memory="1G", tasks=2).core_hours == 20 * 2
