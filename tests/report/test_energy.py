from __future__ import annotations

from typing import Any

import pandas as pd

from hpcrl.report.energy import in_words

NAN = float("nan")
KWH = 3.6e6


def rows(*cells: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"slurm_energy": NAN, "cpu_energy": NAN, "energy": NAN, "shared": False, "resumed_step": NAN} | each
            for each in cells
        ]
    )


def test_what_nobody_counted_is_said_once() -> None:
    assert in_words(rows({}, {}), 400.0).startswith("Energy was not measured")


def test_packages_and_gpus_are_added_and_emissions_only_when_asked_for() -> None:
    cells = rows({"cpu_energy": 2 * KWH, "energy": 3 * KWH}, {"cpu_energy": 1 * KWH}, {})
    text = "Energy: 3 kWh by processor packages of whole nodes (RAPL) (2 cells), 3 kWh by GPUs (NVML) (1 cell)."
    assert in_words(cells, None) == f"{text} The energy of 1 cell is not known."
    assert "At 500 g CO2e/kWh this is about 3 kg CO2e" in in_words(cells, 500.0)


def test_slurm_s_account_of_a_node_counts_where_the_processors_have_no_counter() -> None:
    text = in_words(rows({"slurm_energy": 2 * KWH, "energy": 1 * KWH}), 1000.0)
    assert text.startswith("Energy: 2 kWh by Slurm, whole nodes (1 cell).")  # the GPUs are in it
    assert "about 2 kg CO2e" in text
    text = in_words(rows({"slurm_energy": 2 * KWH, "cpu_energy": 1 * KWH}), None)
    assert text == "Energy: 1 kWh by processor packages of whole nodes (RAPL) (1 cell)."


def test_cells_that_shared_a_machine_have_no_energy_of_their_own() -> None:
    shared = {"cpu_energy": 2 * KWH, "shared": True}
    assert in_words(rows(shared, shared), None) == "Energy of single cells is not known. Cells shared their machines."
    by_slurm = {"slurm_energy": 2 * KWH, "shared": True}
    assert (
        in_words(rows(by_slurm, by_slurm), None) == "Energy of single cells is not known. Cells shared their machines."
    )
    text = in_words(rows(shared | {"energy": 2 * KWH}, {"energy": 1 * KWH}), 1000.0)
    assert text.startswith(
        "Energy: 3 kWh by GPUs (NVML) (2 cells). Of cells that shared their machines only the GPUs are counted (1 cell). At "
    )


def test_the_energy_of_requeued_cells_is_not_known_and_nobody_says_that_it_was_not_measured() -> None:
    requeued = {"resumed_step": 10.0}
    text = "The energy of requeued cells is not known as a whole."
    assert in_words(rows(requeued, requeued), None) == text
    assert in_words(rows(requeued, {}), None) == f"{text} That of the others was not measured."
    assert in_words(rows(requeued, {"energy": KWH}), None).endswith("The energy of 1 cell is not known.")
