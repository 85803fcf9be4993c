"""The trials of a search for hyperparameters: what they drew, how they ended, which parameter mattered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from hpcrl.formats.facts import RETURNS
from hpcrl.formats.labels import label
from hpcrl.report.design import counted, display, spread
from hpcrl.report.groups import resources
from hpcrl.searches import BEST, ID, ROLE, TRIAL, TRIALS, setting_of

_FIRST = ("algorithm", "framework", "execution")  # in names, by their value alone
_LEAST_TRIALS = 5  # completed ones, below which an importance means nothing


@dataclass(frozen=True)
class Search:
    """The trials of one study's searches.

    Args:
        trials: one row for each trial: `search` (which of the study's searches), `trial`, `outcome`, `value` (of the objective), `cell`, and a column
            for each parameter.
        evaluations: `cell`, `step` and `return` of each evaluation of the trials.
        importance: share of the objective's variation by search and parameter (PED-ANOVA).
    """

    trials: pd.DataFrame
    evaluations: pd.DataFrame
    objective: str
    maximised: bool
    parameters: list[str]
    sentences: list[str]
    importance: pd.DataFrame = field(default_factory=pd.DataFrame)

    def best(self, trials: pd.DataFrame) -> Any:
        """Return the best completed trial of some, as the search chose it; None if none completed."""
        done = trials[(trials["outcome"] == "completed") & trials["value"].notna()]
        if done.empty:
            return None
        return done.sort_values(["value", "trial"], ascending=[not self.maximised, True]).iloc[0]


def is_trial(cells: pd.DataFrame) -> pd.Series[bool]:
    """Tell which attempts are trials of a search."""
    return cells["config"].map(lambda text: json.loads(text).get(ROLE) == TRIAL).astype(bool)


def without_trials(cells: pd.DataFrame, studies: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Leave out the trials of searches: the runs of the best trial are the result, and are named so.

    Args:
        studies: the entries of the dataset's index.
    """
    searched = {name for name, study in studies.items() if study.get("search")}
    if not searched & set(cells["study"]):
        return cells
    configs = cells["config"].copy()
    for name in searched & set(cells["study"]):
        own = cells[cells["study"] == name]
        space = studies[name]["search"].get("space") or {}
        numbers = _numbers(own, space)
        configs[own.index] = [_named(text, space, number) for text, number in zip(own["config"], numbers, strict=True)]
    trials = is_trial(cells) & cells["study"].isin(searched)
    return cells.assign(config=configs)[~trials]


def _named(text: str, space: Mapping[str, Any], number: str) -> str:
    """Return the configuration of a run of the best trial without the values that were drawn."""
    config = json.loads(text)
    if config.get(ROLE) != BEST:
        return text
    said = f"best of {counted(int(config.get(TRIALS) or 0), 'trial')}{number and f', {number}'}"
    return json.dumps({**setting_of(config, space), ROLE: said, "seed": config.get("seed")}, sort_keys=True)


def _numbers(cells: pd.DataFrame, space: Mapping[str, Any]) -> list[str]:
    """Return for each attempt of a study which search it belongs to, such as `search 2`: nothing if its setting had only one.

    Plans of one name may have different searches, or the same one twice. They are numbered in the order in which they began.
    """
    configs = [json.loads(text) for text in cells["config"]]
    settings = [json.dumps(setting_of(config, space), sort_keys=True) for config in configs]
    whole = list(zip(settings, resources(cells), cells["cluster"], strict=True))
    own = [(plan, config[ID]) if ID in config else None for plan, config in zip(cells["plan"], configs, strict=True)]
    begun: dict[Any, dict[Any, float]] = {}
    for key, search, started in zip(whole, own, cells["started"], strict=True):
        if search and started == started:
            searches = begun.setdefault(key, {})
            searches[search] = min(started, searches.get(search, started))
    orders = {key: sorted(searches, key=lambda search: (begun[key][search], search)) for key, searches in begun.items()}
    return [
        f"search {orders[key].index(search) + 1}" if len(orders.get(key, ())) > 1 and search in orders[key] else ""
        for key, search in zip(whole, own, strict=True)
    ]


def search_of(cells: pd.DataFrame, episodes: pd.DataFrame, study: Mapping[str, Any]) -> Search | None:
    """Return the searches of a study; None if it has no trial.

    Args:
        cells: the attempts of the study.
        study: its entry in the dataset's index.
    """
    facts = study.get("search") or {}
    directions = facts.get("directions") or {}
    rows = cells[is_trial(cells) & cells["latest"].astype(bool)]
    if rows.empty or not directions:
        return None
    objective, direction = next(iter(directions.items()))
    configs = [json.loads(text) for text in rows["config"]]
    parameters = [name for name in facts.get("space", {}) if any(name in config for config in configs)]
    trials = pd.DataFrame({name: [config.get(name) for config in configs] for name in parameters}, index=rows.index)
    places = _places(rows)
    numbers = pd.Series(_numbers(cells, facts.get("space", {})), cells.index)[rows.index]
    trials["search"] = [
        " ".join(filter(None, (_name(setting_of(config, facts.get("space", {}))), place, number)))
        for config, place, number in zip(configs, places, numbers, strict=True)
    ]
    trials["trial"] = [config.get(TRIAL) for config in configs]
    trials["outcome"], trials["cell"] = rows["outcome"], rows["cell"]
    evaluations = _evaluations(cells, rows, episodes)
    trials["value"] = _values(rows, evaluations, episodes, objective)
    trials = trials.sort_values(["search", "trial"]).reset_index(drop=True)
    search = Search(trials, evaluations, objective, direction == "maximize", parameters, [])
    search.sentences.extend(_sentences(search, facts))
    return Search(**{**vars(search), "importance": _importance(search)})


def _evaluations(cells: pd.DataFrame, rows: pd.DataFrame, episodes: pd.DataFrame) -> pd.DataFrame:
    """Return the evaluations of trials: `cell`, `step` and `return`.

    All attempts of a cell that drew the same values are one trial, which went on from a checkpoint. Earlier draws are left out.
    """
    drawn = cells.merge(rows[["plan", "cell", "config"]], on=["plan", "cell", "config"])[["plan", "cell", "attempt"]]
    evaluations = episodes[(episodes["name"] == "return") & (episodes["kind"] == "evaluation")]
    joined = evaluations.merge(drawn, on=["plan", "cell", "attempt"]).sort_values(["cell", "step", "attempt"])
    joined = joined.drop_duplicates(["plan", "cell", "step"], keep="last").rename(columns={"value": "return"})
    return joined[["cell", "step", "return"]]


def _values(rows: pd.DataFrame, evaluations: pd.DataFrame, episodes: pd.DataFrame, objective: str) -> pd.Series[float]:
    """Return the objective of each trial that completed: a value of training, or the last one that a command reported."""
    name = "return" if objective in RETURNS else objective
    reported = episodes[(episodes["kind"] == "value") & (episodes["name"] == name)]
    if len(reported):
        keys = ["plan", "cell", "attempt"]
        last = reported.sort_values("time", kind="stable").groupby(keys)["value"].last()
        values = pd.Series(last.reindex(pd.MultiIndex.from_frame(rows[keys])).to_numpy(float), rows.index)
    elif objective == "mean_score":
        values = rows["cell"].map(evaluations.groupby("cell")["return"].mean()).astype(float)
    else:
        values = rows.get(objective, pd.Series(float("nan"), rows.index)).astype(float)
    return values.where(rows["outcome"] == "completed")


def _places(rows: pd.DataFrame) -> list[str]:
    """Return what distinguishes the searches besides their settings: resources and clusters, if there are several."""
    where = resources(rows)
    names = [where] if len(set(where)) > 1 else []
    if rows["cluster"].nunique() > 1:
        names.append([f"on {name}" for name in rows["cluster"]])
    return [" ".join(parts) for parts in zip(*names, strict=True)] if names else [""] * len(rows)


def _name(setting: Mapping[str, Any]) -> str:
    first = [setting[name] for name in _FIRST if name in setting]
    others = {name: value for name, value in setting.items() if name not in _FIRST}
    return " ".join([*map(display, first), *([label(others)] if others else [])])


def _sentences(search: Search, facts: Mapping[str, Any]) -> list[str]:
    how = f"sampler {facts.get('sampler', 'tpe')}, pruner {facts.get('pruner', 'none')}"
    texts = []
    for key, trials in search.trials.groupby("search", sort=True):
        name = f"{key!s}: " if key else ""
        outcomes = spread({str(key): int(number) for key, number in trials["outcome"].value_counts().items()})
        text = f"{name}{counted(len(trials), 'trial')} ({outcomes}; {how})."
        best = search.best(trials)
        if best is None:
            text += " None completed."
        else:
            drawn = ", ".join(
                f"{parameter.replace('_', ' ')} {value_text(best[parameter])}"
                for parameter in search.parameters
                if not pd.isna(best[parameter])  # of another search
            )
            text += (
                f" The best one is trial {best['trial']} with {drawn}. Its {search.objective.replace('_', ' ')} was {value_text(best['value'])}, which is the best "
                "of many and so better than it will be again: the comparison has its runs on other seeds."
            )
        texts.append(text)
    return texts


def value_text(value: Any) -> str:
    """Write a drawn value: a number with four significant digits, a whole number with all."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, str | bool):
        return str(value).lower()
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def _importance(search: Search) -> pd.DataFrame:
    """Return the importance of each parameter by PED-ANOVA (Watanabe et al. 2023, arXiv 2304.10255); empty with few trials."""
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = []
    for name, trials in search.trials.groupby("search", sort=True):
        done = trials[trials["value"].notna()]
        if len(done) < _LEAST_TRIALS:
            continue
        varied = [parameter for parameter in search.parameters if done[parameter].nunique() > 1]
        study = optuna.create_study(direction="maximize" if search.maximised else "minimize")
        kinds = {parameter: _distribution(done[parameter]) for parameter in varied}
        for _, row in done.iterrows():
            drawn = {
                parameter: row[parameter].item() if hasattr(row[parameter], "item") else row[parameter]
                for parameter in varied
            }
            study.add_trial(optuna.create_trial(params=drawn, distributions=kinds, value=float(row["value"])))
        if varied and done["value"].nunique() > 1:
            shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), params=varied)
            rows += [
                {"search": name, "parameter": parameter, "importance": share} for parameter, share in shares.items()
            ]
    return pd.DataFrame(rows)


def _distribution(values: pd.Series[Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if values.map(lambda value: isinstance(value, str | bool)).any():
        return CategoricalDistribution(sorted(set(values), key=str))
    low, high = float(values.min()), float(values.max())
    return FloatDistribution(low, high, log=low > 0 and high / low > 50)
