"""The program that wraps sbatch, squeue, sacct, scancel or scontrol, and follows the control file.

:mod:`hpcrl.private_slurm.faults` copies it beside the control file, and Python runs it with -I -S: standard library only.
Usage: fault_wrapper.py DIRECTORY COMMAND ARGUMENT...
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from typing import Any

CONTROL, LOCK, LOG = "control.json", "lock", "calls.jsonl"
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


def take(directory: str, command: str) -> tuple[str, dict[str, Any]]:
    """Return the real program and {fault: value} for this call, and count the call off those faults."""
    with open(f"{directory}/{LOCK}", "a") as lock:  # noqa: PTH123 (pathlib costs every call 10 ms)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(f"{directory}/{CONTROL}") as file:  # noqa: PTH123
            control = json.load(file)
        chosen = {}
        faults = control["faults"].get(command, {})
        for kind, fault in list(faults.items()):
            if fault["skip"] > 0:
                fault["skip"] -= 1
                continue
            chosen[kind] = fault["value"]
            if fault["times"] is not None:
                fault["times"] -= 1
                if fault["times"] == 0:
                    del faults[kind]
        if faults or chosen:
            new = f"{directory}/{CONTROL}.new"
            with open(new, "w") as file:  # noqa: PTH123
                json.dump(control, file)
            os.replace(new, f"{directory}/{CONTROL}")  # noqa: PTH105
    return control["real"][command], chosen


def note(directory: str, **facts: Any) -> None:
    """Append one line to the log of calls; lines of calls at the same time do not mix."""
    line = json.dumps({"pid": os.getpid(), "time": time.time(), **facts}) + "\n"
    log = os.open(f"{directory}/{LOG}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, line.encode())
    os.close(log)


def main(directory: str, command: str, arguments: list[str]) -> int:
    real, faults = take(directory, command)
    note(directory, command=command, arguments=arguments, faults=sorted(faults))
    if "delay" in faults:
        time.sleep(faults["delay"])
    while "hang" in faults:
        time.sleep(3600)
    if "fail" in faults:
        print(faults["fail"], file=sys.stderr)
        return 1
    if "reply" in faults:
        sys.stdout.write(faults["reply"] and faults["reply"] + "\n")
        return 0
    if "banner" in faults:
        print(faults["banner"], flush=True)
    if "delay-after" not in faults and "accept-and-fail" not in faults:
        os.execv(real, [command, *arguments])
    import subprocess

    done = subprocess.run([real, *arguments], capture_output=True, check=False)
    note(directory, code=done.returncode, out=done.stdout.decode(errors="replace"))
    if "delay-after" in faults:
        time.sleep(faults["delay-after"])
    if "accept-and-fail" in faults and done.returncode == 0:
        print(TIMED_OUT.replace("sbatch:", command + ":", 1), file=sys.stderr)
        return 1
    sys.stdout.buffer.write(done.stdout)
    sys.stderr.buffer.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
