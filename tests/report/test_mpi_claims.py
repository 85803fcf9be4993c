"""The claims of the paper on MPI: each place is one configuration of a study, and each has one at equal work."""

from __future__ import annotations

import pytest

from hpcrl.spec.checks import combinations
from hpcrl.spec.library import Library

CLAIMS = Library().claims("mpi-deep-q-learning")


@pytest.mark.parametrize("kind", ["places", "stand_ins"])
def test_each_place_is_one_configuration_of_its_study(kind: str) -> None:
    for name, place in getattr(CLAIMS, kind).items():
        (study,) = place.study or ()
        cells = [values for values, _ in combinations(Library().study(study), {*place.settings, "framework"})]
        assert len([values for values in cells if place.has(values)]) == 1, name


def test_each_published_run_has_one_at_equal_work() -> None:
    published = {name for name, place in CLAIMS.places.items() if "published" in str(place.study)}
    assert set(CLAIMS.stand_ins) == published
    for name in published:
        place, other = CLAIMS.places[name], CLAIMS.stand_ins[name]
        assert other.settings == place.settings, name
        assert [study.replace("-published", "") for study in place.study or ()] == list(other.study or ()), name
