"""Run in a framework's own environment: what algorithms do in one of its modes where the answer is known, as JSON of each."""

from __future__ import annotations

import importlib
import json
import sys

from tests.rl.builders import fresh


def main(framework: str, execution: str, part: str, *algorithms: str) -> None:
    facts = {}
    for name in algorithms:
        fresh(framework)
        facts[name] = importlib.import_module(f"tests.rl.{name}_program").known(framework, execution, part)
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
