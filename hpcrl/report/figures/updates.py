"""The time of updates, three ways: as a profiler counts it, synchronised, and as a share of the training.

A framework that works asynchronously (JAX, and every one on a GPU) returns from an update before it is computed. A profiler that looks at the
call alone counts its dispatch, and the waiting appears elsewhere. Figure 6 of "JAX 4 Deep RL" (2023) shows such times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import altair as alt
import pandas as pd

from hpcrl.formats.profiles import is_update, read_functions
from hpcrl.profilers import KEY
from hpcrl.report.design import display
from hpcrl.report.figures.drawing import ROW, Figure, Panel, ordered, rounded, y_lines

_MICRO = 1e6


def dispatched(under: pd.DataFrame, profiles: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds that cProfile counted in each learner's updates, per environment step: `alike`, `place`, `seed` and `seconds`.

    `alike` is the configuration without the profiler (:func:`alike`).

    Args:
        under: `plan`, `cell`, `attempt`, `steps`, `seed`, `config` and `place` of the attempts under cProfile; profiles: the table ``profiles``.
    """
    rows = []
    own = profiles[(profiles["profiler"] == "cprofile") & (profiles["rank"] == 0)]
    for row in own.merge(under, on=["plan", "cell", "attempt"]).to_dict("records"):
        counted = read_functions(row["functions"] or "")
        # Neither calls the other, so that nothing counts twice.
        seconds = sum(function.total for function in counted if is_update(function.name))
        if seconds > 0 and row["steps"] > 0:
            facts = {name: row[name] for name in ("place", "seed")}
            rows.append({"alike": alike(row["config"]), **facts, "seconds": seconds / row["steps"]})
    return pd.DataFrame(rows, columns=["alike", "place", "seed", "seconds"])


def alike(config: str) -> str:
    """Return a configuration, as JSON, without seed and profiler."""
    values = {name: value for name, value in json.loads(config).items() if name not in ("seed", KEY)}
    return json.dumps(values, sort_keys=True)


def places_of(rows: pd.DataFrame) -> pd.Series[str]:
    """Return the cluster and the kind of machine of attempts with the columns of `with_groups`."""
    return rows["cluster"].str.split(" (", n=1, regex=False).str[0] + ", " + rows["machine"]


def figure(rows: pd.DataFrame, phases: pd.DataFrame, as_published: pd.DataFrame) -> Figure | None:
    """Draw the three ways for the configurations that ran with and without cProfile; None if there are none.

    Args:
        rows: unprofiled attempts with the columns of `with_groups`; phases: the table ``phases``.
        as_published: the result of :func:`dispatched`.
    """
    done = rows[(rows["outcome"] == "completed") & (rows["steps"] > 0) & rows["profile"].isna()]
    done = done[done["resumed_step"].isna()]  # otherwise its phases are those of the rest only
    keys = ["plan", "cell", "attempt"]
    updates = phases[(phases["rank"] == 0) & (phases["phase"] == "update")][[*keys, "seconds"]]
    named = done.assign(place=places_of(done), alike=[alike(text) for text in done["config"]])
    known = named.merge(updates, on=keys).merge(
        as_published, on=["alike", "place", "seed"], suffixes=("", "_published")
    )
    if known.empty:
        return None
    several = known.groupby("workload", observed=True)["where"].transform("nunique") > 1
    known = known.assign(name=known["what"].where(~several, known["what"] + " · " + known["where"]))
    if known.groupby("name")["place"].nunique().max() > 1:
        known = known.assign(name=known["name"] + " · " + known["place"])
    precise = known["precise_phases"].fillna(value=False).astype(bool)
    when = (
        "every update"
        if precise.all()
        else "every block of updates"
        if not precise.any()
        else "every update or block of updates"
    )
    algorithms = list(known.groupby("workload", observed=True, sort=True))
    panels = [
        panel
        for name, own in algorithms
        for panel in _panels(own, when, f"{display(name)}, " if len(algorithms) > 1 else "")
    ]
    text = (
        "The time of updates, three ways, means over the seeds that ran with and without cProfile. First what cProfile counts in the learner's call, which includes the profiler's own cost, and "
        "which may return before the update is computed (on a GPU, and in JAX without waiting, “unsynchronized”). Figure 6 of “JAX 4 Deep RL” (2023) shows such times. Then the phase “update” of cells without a "
        "profiler, which waits for the device. Last, that phase as a share of the training time, which has no evaluations, compiling and set-up in it."
    )
    return Figure("updates", "The time of updates, three ways", text, tuple(panels))


def _panels(known: pd.DataFrame, when: str, start: str) -> Iterator[Panel]:
    """Draw the runs of one algorithm: another one's updates can take a hundred times as long. `start` begins the titles."""
    names = ordered(known["name"])
    # The phases of a run that does not wait have no synchronised time.
    waits = known[[not json.loads(text).get("unsynchronized") for text in known["config"]]]
    per_step = "µs per environment step"
    for rows, values, axis, title in (
        (known, _MICRO * known["seconds_published"], per_step, "the call under cProfile"),
        (waits, _MICRO * waits["seconds"] / waits["steps"], per_step, f"synchronised after {when}"),
        (
            waits,
            100 * waits["seconds"] / waits["training_time"],
            "share of the training time (%)",
            "of the whole training",
        ),
    ):
        yield _bars(pd.DataFrame({"name": rows["name"], "value": values}), names, axis, start + title)


def _bars(values: pd.DataFrame, names: list[str], axis: str, title: str) -> Panel:
    centres = values.groupby("name")["value"].mean()
    mean = pd.DataFrame({"line": centres.index, "value": centres.to_numpy()})
    chart = (
        alt.Chart(rounded(mean))
        .mark_bar(height=ROW * 0.6, color="#0072B2")
        .encode(
            x=alt.X("value:Q", title=axis, axis=alt.Axis(tickCount=5)),
            y=y_lines(names),
            tooltip=[alt.Tooltip("line", title="configuration"), alt.Tooltip("value", title=axis, format=".4g")],
        )
        .properties(height=alt.Step(ROW))
    )
    table = mean.rename(columns={"line": "configuration", "value": f"{title}, {axis}"})
    return Panel(chart, table, title, len(names))
