"""How soon a report of 10,000 cells opens in Chromium: 2,000 configurations of five seeds.

    python -m benchmarks.report_opening

Needs chromium and chromedriver, as `make test` installs them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.collecting import write_records


def main() -> None:
    from tests.report.browser import found, opened, until

    if not found():
        print("opening a report: no chromium and chromedriver here")
        return
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        plan = write_records(directory, 10_000, seeds=5)
        for verb, *arguments in (
            ("collect", str(plan), "-o", f"{name}/dataset"),
            ("report", f"{name}/dataset", "-o", f"{name}/report", "--figures", "none"),
        ):
            start = time.monotonic()
            subprocess.run([sys.executable, "-m", "hpcrl", verb, *arguments], check=True, stdout=subprocess.DEVNULL)
            print(f"hpcrl {verb} of 10,000 cells: {time.monotonic() - start:.1f} s")
        page = directory / "report/report.html"
        print(f"report.html: {page.stat().st_size / 1e6:.1f} MB")
        with opened(page) as browser:
            script = "const t = performance.getEntriesByType('navigation')[0]; return t.loadEventEnd - t.startTime"
            print(f"opens in {until(lambda: browser.execute_script(script), 'loaded') / 1000:.2f} s")


if __name__ == "__main__":
    main()
