"""Energy of the processor packages, from RAPL as Linux shows it (/sys/class/powercap). Many sites let only root read it."""

from __future__ import annotations

from pathlib import Path


class Packages:
    """The energy of this node's processor packages (the whole machine) since its creation. Each counter wraps around at its range.

    Args:
        powercap: the kernel's directory of the counters.
    """

    def __init__(self, powercap: Path = Path("/sys/class/powercap")) -> None:
        self._joules = 0.0
        self._last: dict[Path, tuple[int, int]] = {}  # zone -> its counter and its range, microjoules
        for zone in sorted(powercap.glob("*-rapl:*")):
            try:
                if (zone / "name").read_text().startswith("package"):
                    self._last[zone] = _counter(zone), int((zone / "max_energy_range_uj").read_text())
            except (OSError, ValueError):
                continue

    def read(self) -> dict[str, float]:
        """Return ``cpu_energy`` in joules; nothing if it cannot be read."""
        if not self._last:
            return {}
        for zone, (before, most) in self._last.items():
            now = _counter(zone)
            self._joules += ((now - before) if now >= before else now + most - before) / 1e6
            self._last[zone] = now, most
        return {"cpu_energy": self._joules}


def _counter(zone: Path) -> int:
    return int((zone / "energy_uj").read_text())
