"""Why a job waits, in words, and what its owner can do. Slurm's own words: squeue(1), JOB REASON CODES."""

from __future__ import annotations

import re
from functools import cache

_WORDS = (
    ("JobArrayTaskLimit", "the plan limits how many tasks of this array run at once; this one follows"),
    ("Priority", "jobs of higher priority are before it; nothing to do"),
    ("Resources", "it is next, and waits for nodes to become free"),
    ("Dependency", "it waits for an earlier stage of the chain"),
    ("DependencyNeverSatisfied", "the job that it waits for has failed: cancel this one (hpcrl cancel), correct the cause, and submit again"),
    ("BeginTime", "it was requeued, and Slurm lets it rest before the next start"),
    ("JobHeldUser", "you hold it: scontrol release JOB"),
    ("JobHeldAdmin", "an administrator holds it: ask your site"),
    ("JobLaunchFailure", "its start failed on the node: ask your site, or cancel and submit again"),
    ("launch failed requeued held", "its start failed on a node and Slurm holds it: run `hpcrl submit`, or scontrol release JOB"),
    ("job requeued in held state", "it was requeued and Slurm holds it: scontrol release JOB"),
    ("ReqNodeNotAvail", "its nodes are down, reserved or in maintenance (scontrol show reservation); it starts when they return"),
    ("Reservation", "it waits for its reservation"),
    ("Licenses", "it waits for a licence"),
    ("PartitionDown", "the partition is down: ask your site"),
    ("PartitionInactive", "the partition takes no jobs now: ask your site"),
    ("PartitionNodeLimit", "it asks for more nodes than the partition allows: plan again"),
    ("PartitionTimeLimit", "it asks for more time than the partition allows: shorten `time` and plan again"),
    ("InvalidAccount", "the account is not valid any more: ask your site"),
    ("InvalidQOS", "the QOS is not valid for you any more: ask your site"),
    ("BadConstraints", "no node has what it asks for: plan again for this cluster"),
    ("NodeDown", "a node that it needs is down"),
    ("QOSNotAllowed", "the QOS is not allowed in this partition: plan again"),
    ("QOSMaxJobsPerUserLimit", "you have as many running jobs as the QOS allows; it starts when one of them ends"),
    ("QOSMaxSubmitJobPerUserLimit", "you have as many jobs in the queue as the QOS allows"),
)  # fmt: skip
_MINUTES = re.compile(r"(Assoc|QOS)Grp\w*(Minutes|RunMinutes)$")
_MAXIMUM = re.compile(r"(Assoc|QOS)(Grp|Max)(\w+?)(Per\w+)?(Limit)?$")
_KNOWN = dict(_WORDS)


LAUNCH_FAILED = "launch failed requeued held"
# Reasons that do not end by themselves.
_STUCK = frozenset(
    {LAUNCH_FAILED, "job requeued in held state", "JobHeldUser", "JobHeldAdmin", "DependencyNeverSatisfied"}
)


def word_of(reason: str) -> str:
    """Return the reason's own word, without the nodes that may follow it."""
    word = reason.partition(",")[0].strip().strip("()")
    return word.replace("_", " ") if word.islower() else word


def is_stuck(reason: str | None) -> bool:
    """Tell whether a job that waits for this reason waits until somebody acts."""
    return reason is not None and word_of(reason) in _STUCK


@cache
def explain(reason: str) -> str:
    """Return Slurm's word for why a job waits, with what it means and what to do."""
    word = word_of(reason)
    if word in ("", "None"):
        return "Slurm has not looked at it yet"
    if word in _KNOWN:
        return f"{word}: {_KNOWN[word]}"
    whose = "your account" if word.startswith("Assoc") else "the QOS"
    if _MINUTES.match(word):
        return f"{word}: the budget of {whose} is used up: ask for more time, or plan with another account or QOS"
    if match := _MAXIMUM.match(word):
        shared = "all of its users together" if match[2] == "Grp" else "you"
        return f"{word}: {whose} allows no more {_what(match[3])} to {shared} at once; it starts when others end"
    return reason


def _what(word: str) -> str:
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", word)
    return " ".join(part.lower() if part != "CPU" else part for part in parts) or "resources"
