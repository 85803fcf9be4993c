"""The fields of a record's header and footer, and the kind of each value, as a reader checks them.

:func:`hpcrl.run.header.header_of` writes the header's, and :mod:`hpcrl.collect` reads them.
"""

from __future__ import annotations

from hpcrl.formats.shapes import COUNT, FACTS, NUMBER, TEXT, TRUTH

# Keys that a header must have, those that it may have, and those that stand there for people, and that no reader keeps.
REQUIRED = {
    "plan": TEXT, "cell": TEXT, "attempt": TEXT, "node": TEXT, "rank": COUNT, "started": NUMBER,
    "hardware": FACTS, "software": FACTS, "variables": FACTS,
}  # fmt: skip
NAMES = ("plan", "cell", "attempt", "node")  # what files and rows are named after
OPTIONAL = {
    "partition": TEXT, "qos": TEXT, "job_id": TEXT, "clock_offset": NUMBER, "code": FACTS, "calibration": FACTS,
    "tensorboard": TEXT, "idle_cpu_percent": NUMBER, "idle_memory_percent": NUMBER, "drawn": FACTS, "search": TEXT, "profile": TEXT,
    "submission": TEXT,
}  # fmt: skip
FOR_PEOPLE = (
    "format", "hpcrl", "worker", "study", "cluster", "job", "config", "resources", "environment", "workload", "restarts", "ranks", "slurm",
)  # fmt: skip
HEADER = (*REQUIRED, *OPTIONAL)  # the keys that are kept
CODE = {"git_commit": TEXT, "git_dirty": TRUTH, "modules": TEXT, "workdir": TEXT, "surroundings": TEXT}
FOOTER = {
    "reason": TEXT, "wall_time": NUMBER, "training_time": NUMBER, "setup_time": NUMBER, "compile_time": NUMBER,
    "phase_time": NUMBER, "precise_phases": TRUTH, "steps": COUNT, "episodes": COUNT, "final_score": NUMBER,
    "best_score": NUMBER, "goal_step": COUNT, "goal_time": NUMBER, "sampler_cpu": NUMBER, "sampler_memory": NUMBER,
    "framework_gpu_memory_peak": NUMBER, "compiled": TEXT, "collective": TEXT, "messages": TEXT, "lost_frames": COUNT,
    "malformed_values": COUNT, "own_cpu_seconds": NUMBER, "own_context_switches": COUNT, "largest_process": COUNT,
    "unreaped": TRUTH, "killed_by": TEXT, "evaluation_time": NUMBER, "goal_wall_time": NUMBER,
    "resumed_step": COUNT, "updates": COUNT,
}  # fmt: skip
FOOTER_TOO = (
    "outcome",
    "profile",
    "exit_code",
)  # the first two are checked otherwise; the exit code stands there for people
PROFILE = {
    "profiler": TEXT, "file": TEXT, "size": COUNT, "note": TEXT, "seconds": NUMBER, "unit": TEXT, "total": NUMBER,
    "functions": TEXT, "stacks": TEXT,
}  # fmt: skip
