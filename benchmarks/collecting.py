"""10,000 records into one dataset: hpcrl collect, and the same numbers as pickled tables by pandas, pyarrow and Polars.

    python -m benchmarks.collecting [RECORDS]

Each record holds what a minute of a cell leaves: a header, 60 samples of 25 columns and two cores in 12 frames (one
every five seconds), as many of episodes and of progress, phases, a footer. hpcrl trusts none of it, reads it with its own unpickler, checks
it and writes four Parquet tables. The peers get less to do: 60 samples of 12 columns as one pickled data frame, which
they trust, joined in memory and written as one Parquet file.
"""

from __future__ import annotations

import json
import pickle
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.measure import cpu_seconds

SAMPLES, FRAMES, COLUMNS = 60, 12, 12
_STUDY = """
name: big
title: A big study
workload: {{algorithm: dqn, environment: CartPole-v1}}
axes: {{framework: [numpy], batch_size: {sizes}}}
seeds: {seeds}
chain: parallel
resources: {{memory: 4G, time: 01:00:00}}
"""
_PANDAS = """
import pathlib, pickle, sys
import pandas as pd
frames = [pd.read_pickle(path) for path in sorted(pathlib.Path(sys.argv[1]).glob("*.pkl"))]
pd.concat(frames, ignore_index=True).to_parquet(sys.argv[2])
"""
_PYARROW = """
import pathlib, pickle, sys
import pyarrow as pa, pyarrow.parquet as pq
tables = [pa.table(pickle.loads(path.read_bytes())) for path in sorted(pathlib.Path(sys.argv[1]).glob("*.pkl"))]
pq.write_table(pa.concat_tables(tables), sys.argv[2])
"""
_POLARS = """
import pathlib, pickle, sys
import polars as pl
frames = [pl.DataFrame(pickle.loads(path.read_bytes())) for path in sorted(pathlib.Path(sys.argv[1]).glob("*.pkl"))]
pl.concat(frames).write_parquet(sys.argv[2])
"""


def write_records(directory: Path, count: int, seeds: int = 1000) -> Path:
    """Plan so many cells, in configurations of so many seeds, and write a record for each; return the plan."""
    from hpcrl.formats.plan import read_cells
    from hpcrl.formats.record import FORMAT, SAMPLE_COLUMNS, RecordWriter, record_name

    study = directory / "study.yaml"
    study.write_text(_STUDY.format(sizes=list(range(1, count // seeds + 1)), seeds=seeds))
    plan = directory / "plan"
    subprocess.run(
        [sys.executable, "-m", "hpcrl", "plan", "--study", str(study), "-o", str(plan)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    manifest = json.loads((plan / "plan.json").read_text())
    generator = np.random.default_rng(0)
    rows = SAMPLES // FRAMES
    for number, cell in enumerate(read_cells(plan)):
        writer = RecordWriter(plan / "records" / record_name(cell.id, "local-1", f"n{number % 100}", 0))
        writer.write(
            "header",
            {
                "format": FORMAT, "plan": manifest["id"], "study": "big", "cluster": "workstation", "cell": cell.id,
                "attempt": "local-1", "node": f"n{number % 100}", "rank": 0, "ranks": 1, "restarts": 0, "started": 1e9 + number,
                "config": cell.config, "resources": cell.resources, "environment": cell.environment, "workload": "dqn",
                "hardware": {"cpu": "AMD EPYC", "threads": 64, "memory": 2**38, "gpus": [], "kernel": "6.1"},
                "software": {"python": "3.11.7", "numpy": "2.4.0"}, "variables": {"OMP_NUM_THREADS": "1"}, "code": {},
            },
        )  # fmt: skip
        for frame in range(FRAMES):
            table = generator.random((rows, len(SAMPLE_COLUMNS)))
            table[:, 0] = frame * rows + np.arange(rows)
            table[:, 1] = 1e9 + table[:, 0]
            writer.write("samples", {"table": table, "core_percent": generator.random((rows, 2), np.float32)})
            writer.write("episodes", {"table": generator.random((1 + frame % 3, 4)) * 100})
            writer.write("progress", {"table": np.array([[frame, FRAMES, frame]], np.float64)})
        writer.write("phases", {"seconds": {"act": 20.0, "update": 30.0}, "counts": {"act": 9, "update": 9}})
        times = {"wall_time": 60.0, "training_time": 55 + generator.random(), "setup_time": 2.0, "compile_time": 1.0}
        scores = {"steps": 1000, "final_score": 100 * generator.random()}
        writer.write("footer", {"outcome": "completed", **times, **scores})
        writer.close()
    return plan


def write_frames(directory: Path, count: int) -> tuple[Path, Path]:
    """Write as many pickled tables as the peers like them: data frames, and dictionaries of arrays."""
    import pandas as pd

    places = directory / "pandas", directory / "polars"
    for place in places:
        place.mkdir()
    generator = np.random.default_rng(0)
    for number in range(count):
        columns: dict[str, object] = {f"c{index}": generator.random(SAMPLES) for index in range(COLUMNS)}
        columns["cell"] = [f"{number:012x}"] * SAMPLES
        pd.DataFrame(columns).to_pickle(places[0] / f"{number}.pkl")
        (places[1] / f"{number}.pkl").write_bytes(pickle.dumps(columns))
    return places


def run(directory: Path, count: int) -> dict[str, float]:
    """Return CPU seconds by contender, all processes together, imports included."""
    plan = write_records(directory, count)
    numbers = iter(range(1000))

    def collect(*extra: str) -> float:
        dataset = directory / f"dataset-{next(numbers)}"
        return cpu_seconds([sys.executable, "-m", "hpcrl", "collect", str(plan), "-o", str(dataset), *extra], repeats=1)

    found = {"hpcrl collect": min(collect("--processes", "1") for _ in range(3))}
    found["hpcrl collect, in parallel"] = min(collect() for _ in range(3))
    again = [sys.executable, "-m", "hpcrl", "collect", str(plan), "-o", str(directory / "dataset-0")]
    found["hpcrl collect, nothing new"] = cpu_seconds(again)
    frames, columns = write_frames(directory, count)
    out = str(directory / "out.parquet")
    found["pandas read_pickle, concat"] = cpu_seconds([sys.executable, "-c", _PANDAS, str(frames), out])
    found["pickle, pyarrow concat"] = cpu_seconds([sys.executable, "-c", _PYARROW, str(columns), out])
    found["pickle, Polars concat"] = cpu_seconds([sys.executable, "-c", _POLARS, str(columns), out])
    return found


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[0].endswith("collecting.py") else 10_000
    with tempfile.TemporaryDirectory() as name:
        if count > 20_000:  # memory, not time
            plan = write_records(Path(name), count)
            subprocess.run([sys.executable, "-m", "hpcrl", "collect", str(plan), "-o", f"{name}/dataset"], check=True)
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            print(f"{count:,} records: the largest process of hpcrl collect had {peak:,.0f} MiB")
            return
        found = run(Path(name), count)
    reference = found["hpcrl collect"]
    print(f"{count:,} records of {SAMPLES} samples, CPU seconds of all processes (least of three runs)")
    for contender, seconds in found.items():
        print(f"  {contender:<30} {seconds:6.2f} s   {seconds / reference:5.2f} x hpcrl collect")


if __name__ == "__main__":
    main()
