"""What it costs to ask for help: `hpcrl --help` and completion beside `python -c pass` and importing the libraries.

python -m benchmarks.start_up
"""

from __future__ import annotations

import os
import sys

from benchmarks.measure import cpu_seconds


def main() -> None:
    hpcrl = [sys.executable, "-m", "hpcrl"]
    completion = os.environ | {
        "_PYTHON_M_HPCRL_COMPLETE": "bash_complete",
        "_HPCRL_COMPLETE": "bash_complete",
        "COMP_WORDS": "hpcrl pl",
        "COMP_CWORD": "1",
    }
    entry = [sys.executable, "-c", "import sys; sys.argv = ['hpcrl']; from hpcrl.cli.main import main; main()"]
    found = {
        "hpcrl --help": cpu_seconds([*hpcrl, "--help"], repeats=7),
        "hpcrl plan --help": cpu_seconds([*hpcrl, "plan", "--help"], repeats=7),
        "hpcrl pl<TAB>": cpu_seconds(entry, env=completion, repeats=7),
        "python -c pass": cpu_seconds([sys.executable, "-c", "pass"], repeats=7),
        "import click, jinja2, ruamel.yaml": cpu_seconds(
            [sys.executable, "-c", "import click, jinja2, ruamel.yaml"], repeats=7
        ),
        "import flow (signac-flow)": cpu_seconds([sys.executable, "-c", "import flow"], repeats=7),
        "import pandas": cpu_seconds([sys.executable, "-c", "import pandas"], repeats=7),
    }
    reference = found["hpcrl --help"]
    print("Start-up, CPU seconds (least of seven runs)")
    for name, seconds in found.items():
        print(f"  {name:<36} {seconds:6.3f} s   {seconds / reference:5.2f} x hpcrl --help")


if __name__ == "__main__":
    main()
