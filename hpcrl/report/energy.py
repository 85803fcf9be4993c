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

    The counters of processors and GPUs are added. Where the processors have none, Slurm's account counts, which covers the
    whole node, and otherwise the GPUs alone. The energy of the processors or of a node is not known for single cells that
    shared a machine.

    Args:
        rows: attempts with the columns of `with_groups`, and `shared`.
        grid_intensity: grams of CO2 equivalent per kilowatt-hour; None: no estimate.
    """
    packages = rows["cpu_energy"].where((rows["cpu_energy"] > 0) & ~rows["shared"])
    slurm = rows["slurm_energy"].where((rows["slurm_energy"] > 0) & ~rows["shared"] & packages.isna())
    gpus = rows["energy"].where((rows["energy"] > 0) & slurm.isna())
    joules = pd.concat([packages, slurm, gpus], axis=1).sum(axis=1, min_count=1)
    measured = (rows["cpu_energy"] > 0) | (rows["slurm_energy"] > 0)
    if joules.isna().all():
        if bool(measured.any()):
            return "Energy of single cells is not known. Cells shared their machines."
        requeued = rows["resumed_step"].notna()
        if not requeued.any():
            return _UNKNOWN
        others = "" if requeued.all() else " That of the others was not measured."
        return f"The energy of requeued cells is not known as a whole.{others}"
    sources = {
        "processor packages of whole nodes (RAPL)": packages,
        "Slurm, whole nodes": slurm,
        "GPUs (NVML)": gpus,
    }
    told = [
        f"{in_short(values.sum() / _KWH)} kWh by {name} ({counted(int(values.notna().sum()), 'cell')})"
        for name, values in sources.items()
        if values.notna().any()
    ]
    text = f"Energy: {', '.join(told)}."
    if unknown := int(joules.isna().sum()):
        text += f" The energy of {counted(unknown, 'cell')} is not known."
    if partly := int((rows["shared"] & measured & gpus.notna()).sum()):
        text += f" Of cells that shared their machines only the GPUs are counted ({counted(partly, 'cell')})."
    if grid_intensity is not None:
        grams = joules.sum() / _KWH * grid_intensity
        text += f" At {in_short(grid_intensity)} g CO2e/kWh this is about {in_short(grams / 1000)} kg CO2e (an estimate, without cooling and manufacture)."
    return text
