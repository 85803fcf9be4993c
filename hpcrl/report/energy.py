"""The measured energy of a study, and an estimate of its emissions."""

from __future__ import annotations

import pandas as pd

from hpcrl.report.design import counted, in_short

_KWH = 3.6e6  # joules
_UNKNOWN = (
    "Energy was not measured: there was no GPU with a counter, the counters of the processors (RAPL) cannot be read here, and "
    "Slurm does not account for energy."
)


def in_words(rows: pd.DataFrame, grid_intensity: float | None) -> str:
    """Return the energy of a study's attempts in words, by the source of the measurement.

    Slurm's account covers the whole node. Without it, the counters of processors and GPUs are added. The energy of single
    cells that shared a machine is not known.

    Args:
        rows: attempts with the columns of `with_groups`, and `shared`.
        grid_intensity: grams of CO2 equivalent per kilowatt-hour; None: no estimate.
    """
    slurm = rows["slurm_energy"].where(rows["slurm_energy"] > 0)
    packages = rows["cpu_energy"].where((rows["cpu_energy"] > 0) & ~rows["shared"])
    gpus = rows["energy"].where(rows["energy"] > 0)
    own = packages.fillna(0) + gpus.fillna(0)
    joules = slurm.fillna(own.where(packages.notna() | gpus.notna()))
    if joules.isna().all():
        shared = " Cells shared their machines." if bool((rows["cpu_energy"] > 0).any()) else ""
        return _UNKNOWN if not shared else f"Energy of single cells is not known.{shared}"
    sources = {
        "Slurm, whole nodes": slurm,
        "processor packages of whole nodes (RAPL)": packages[slurm.isna()],
        "GPUs (NVML)": gpus[slurm.isna()],
    }
    told = [
        f"{in_short(values.sum() / _KWH)} kWh by {name} ({counted(int(values.notna().sum()), 'cell')})"
        for name, values in sources.items()
        if values.notna().any()
    ]
    text = f"Energy: {', '.join(told)}."
    if unknown := int(joules.isna().sum()):
        text += f" The energy of {counted(unknown, 'cell')} is not known."
    if grid_intensity is not None:
        grams = joules.sum() / _KWH * grid_intensity
        text += f" At {in_short(grid_intensity)} g CO2e/kWh this is about {in_short(grams / 1000)} kg CO2e (an estimate, without cooling and manufacture)."
    return text
