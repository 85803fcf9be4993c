"""The part of hpcrl that runs inside a cell, as one zip file that goes on PYTHONPATH.

So a cell runs the code that the plan was made with, in any environment, whatever is installed later. No other
package of the planning machine reaches the cell's interpreter.
"""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path

PARTS = ("catalogue", "formats", "run", "rl", "slurm", "telemetry")
# The tables of a dataset need pyarrow, which no cell's environment has.
NOT_IN_CELLS = ("formats/damage.py", "formats/mappings.py", "formats/tables.py")


@cache
def worker_zip() -> bytes:
    """Return the archive; the same sources give the same bytes."""
    package = Path(__file__).parent.parent
    parts = (
        "__init__",
        "errors",
        "expected",
        "pins",
        "placeholders",
        "profilers",
        "searches",
        "secrets",
        "surroundings",
    )
    files = [package / f"{name}.py" for name in parts]
    for part in PARTS:
        files += sorted(set((package / part).rglob("*.py")) - {package / name for name in NOT_IN_CELLS})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            entry = zipfile.ZipInfo(str(Path("hpcrl") / file.relative_to(package)), date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, file.read_bytes())
    return out.getvalue()
