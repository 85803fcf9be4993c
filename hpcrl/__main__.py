"""Run the command line: ``python -m hpcrl``, and the entry point `hpcrl`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C is no fault at any moment, the imports included."""
    try:
        from hpcrl.cli.main import main as run

        run()
    except KeyboardInterrupt:
        print("hpcrl: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
