"""Save the trained agents of a cell, after its last measurement."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcrl.errors import HpcrlError
from hpcrl.formats.plan import AGENTS, agent_file
from hpcrl.rl.agents import Agent
from hpcrl.rl.frameworks import save_weights


def save_agents(directory: Path, cell: str, agents: Mapping[str, Agent], origin: dict[str, Any], own: bool) -> None:
    """Save the agents of a cell. If one cannot be saved, the reason is printed: neither record nor outcome are changed.

    Args:
        directory: the plan.
        origin: plain facts of the cell for each file.
        own: also write the weights in the own format of the framework in `origin`.
    """
    for which, agent in agents.items():
        path = agent_file(directory, cell, which)
        try:
            if (directory / AGENTS).is_symlink():
                raise HpcrlError(f"{directory / AGENTS}: is a symbolic link, which hpcrl does not follow: remove it")
            replace(agent, origin={**origin, "which": which}).save(path)
            if own:
                save_weights(origin["framework"], path, agent.weights)
        except Exception as error:  # a framework may raise any exception, and the cell has its outcome already
            told = str(error) if isinstance(error, HpcrlError) else f"{type(error).__name__}: {error}"
            print(f"hpcrl: the {which} agent was not saved: {told}", file=sys.stderr)
