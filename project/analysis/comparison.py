"""Finished runs side by side: metrics over seeds, settings that differ, and tests of differences.

Frames have a row for each run, by its folder; runs that differ in their seed alone are a group.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from csv import QUOTE_NONE
from itertools import combinations
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Literal

import pandas as pd
import yaml
from lightkeeper.cli import read_metrics
from lightkeeper.exact import UserError, note
from matplotlib.figure import Figure
from scipy import stats

from project.analysis.tables import wilson_interval

_FOLDERS = ["name", "trainer.default_root_dir"]
_SEEDS_AND_FOLDERS = ["seed_everything", "data.seed", *_FOLDERS]
_SHARES = ("val/accuracy", "test/accuracy", "val/top5", "test/top5")
"""Metrics that are shares of the images, shown in percent."""


def read_runs(runs: Sequence[str], split: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Reads the metrics of a set that all runs have, ``total``, the images or NaN, and settings.

    Metrics have Lightning's names, such as ``test/accuracy``. Settings are text, by the names of
    options; ``images`` are those of training. Runs that repeat another, seeds included, are left
    out, with a note.
    """
    results = {run: read_metrics(run) for run in runs}
    measured = {run: result.get(split) or {} for run, result in results.items()}
    metrics = pd.DataFrame.from_dict(measured, orient="index").dropna(axis="columns")
    numbers = metrics.select_dtypes("float").add_prefix(f"{split}/")
    if not len(numbers.columns):
        raise UserError(
            f"--split: not all of these runs have measured {split}, or they share no metric of it"
        )
    totals = {part["total"] for part in measured.values() if "total" in part}
    classes = {str(result.get("class_names")) for result in results.values()}
    if len(totals) > 1 or len(classes) > 1:
        note(f"the runs differ in their classes or in the number of {split} images")
    configs = [_read_config(Path(run, "config.yaml")) for run in results]
    settings = pd.json_normalize(configs).set_axis(list(results))
    settings.columns = settings.columns.str.replace(r"\.(init_args|class_path)\b", "", regex=True)
    settings = settings.T.groupby(level=0).first().T  # an option may be null here, a class there
    settings["images"] = [(run.get("images") or {}).get("train") for run in results.values()]
    settings = settings.where(settings.notna(), "").astype(str)
    # of earlier versions, only the number of images is known
    parts = [(run.get("digests") or {}).values() for run in results.values()]
    digests = pd.Series([" ".join(str(part)[:6] for part in of) for of in parts], settings.index)
    by_config = digests.mask(digests == "").groupby(seed_groups(settings))
    if (by_config.nunique() > 1).any():  # the data has changed between runs of one config
        only = by_config.transform("first").where(by_config.transform("nunique") == 1, "")
        settings["digests"] = digests.where(digests != "", only)
    repeats = settings.drop(columns=_FOLDERS, errors="ignore").duplicated()
    if repeats.any():
        note(
            "left out, as their settings and seeds are those of another run: "
            + ", ".join(settings.index[repeats])
        )
    return numbers.assign(total=metrics.get("total", nan))[~repeats], settings[~repeats]


def finished(paths: Sequence[str]) -> list[str]:
    """Returns the finished runs, each once by its first name; notes the paths that are none."""
    runs: dict[str, str] = {}
    for path in paths:
        runs.setdefault(os.path.realpath(path), path)
    present = filter(os.path.exists, runs.values())  # plain files, too, such as charts
    others = [run for run in present if not os.path.exists(os.path.join(run, "metrics.json"))]
    kept = [run for run in runs.values() if run not in others]
    if kept and others:
        note(f"left out, as no metrics.json can be read in them: {', '.join(others)}")
    return kept or others  # reading these says what is wrong


def _read_config(path: Path) -> dict[str, object]:
    with suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
        if path.is_file():  # reading a named pipe would wait for ever
            config = yaml.safe_load(path.read_text("utf-8"))
            if isinstance(config, dict):
                return config
    raise UserError(f"'{path}' is missing or damaged")


def differing(settings: pd.DataFrame) -> pd.DataFrame:
    """Keeps the settings that differ between runs, other than seeds and folders."""
    kept = settings.drop(columns=_SEEDS_AND_FOLDERS, errors="ignore")
    changed: pd.DataFrame = kept.loc[:, kept.nunique() > 1]
    return changed


def seed_groups(settings: pd.DataFrame) -> pd.Series:
    """Names the group of each run, those that differ in their seed alone, by its first and last."""
    keys = ["\n".join(row) for row in differing(settings).to_numpy()]
    runs = settings.index.to_series().groupby(keys)
    names: pd.Series = runs.transform(lambda runs: " … ".join(dict.fromkeys(runs.iloc[[0, -1]])))
    return names


def summary(metrics: pd.DataFrame, groups: pd.Series) -> pd.DataFrame:
    """Computes each metric's mean and standard deviation over the ``n`` runs of a group."""
    runs = metrics.drop(columns="total").groupby(groups, sort=False)
    table: pd.DataFrame = runs.mean().join(runs.std().add_suffix("_std"))
    table.insert(0, "n", runs.size())
    table.index.name = "runs"
    return table


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Formats a summary as text, such as ``96.47% ± 0.43``."""
    text: pd.DataFrame = table[["n"]].astype(str)
    for name in [name for name in table if f"{name}_std" in table]:
        scale, digits, unit = (100, 2, "%") if name in _SHARES else (1, 4, "")
        text[name] = [
            f"{scale * mean:.{digits}f}{unit}" + (f" ± {scale * std:.{digits}f}" if n > 1 else "")
            for n, mean, std in table[["n", name, f"{name}_std"]].itertuples(index=False)
        ]
    return text


def formatted(table: pd.DataFrame, kind: Literal["text", "markdown", "latex", "csv"]) -> str:
    """Formats a table; LaTeX needs the package booktabs."""
    if kind == "text":
        # long values are cut
        return (
            table.replace(r"(?s)^(.{60}).+", r"\1…", regex=True).to_string(index_names=False) + "\n"
        )
    table = table.reset_index()
    if kind == "latex":
        return table.to_latex(index=False, escape=True)
    if kind == "csv":
        return table.to_csv(index=False)
    text = table.to_csv(index=False, sep="|", quoting=QUOTE_NONE, escapechar="\\")
    head, *rows = [f"|{line}|\n" for line in text.splitlines()]
    return "".join([head, f"|{'---|' * len(table.columns)}\n", *rows])


def interval(values: Sequence[float], images: float = nan) -> tuple[float, float]:
    """Returns the 95% interval of a mean, NaN if unknown.

    Of several runs, that is Student's t interval, of how seeds vary. Of one run, it is Wilson's
    interval of a share of ``images``.
    """
    if len(values) > 1:
        half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
        return fmean(values) - half, fmean(values) + half
    if not images > 0:
        return nan, nan
    return wilson_interval(round(values[0] * images), int(images))


def mcnemar(correct: Mapping[str, Sequence[bool]]) -> pd.DataFrame:
    """Tests each pair of models by McNemar's exact test (https://doi.org/10.1007/BF02295996).

    Takes by model, for the same images in the same order, whether it is right. Returns the numbers
    of images that one of the two alone classifies correctly, and the two-sided p-value.
    """
    rows = []
    for pair in combinations(correct, 2):
        outcomes = list(zip(*(correct[name] for name in pair), strict=True))
        counts = outcomes.count((True, False)), outcomes.count((False, True))
        p = stats.binomtest(counts[0], sum(counts)).pvalue if any(counts) else 1.0
        rows.append((*pair, *counts, p))
    names = ["first", "second", "first alone right", "second alone right", "p"]
    return pd.DataFrame(rows, columns=names).set_index(names[:2])


def comparison_figure(metrics: pd.DataFrame, groups: pd.Series) -> Figure:
    """Draws each metric: the mean of each group with its 95% interval, and its runs as ticks.

    The interval is over seeds, or of one run of how it might do on other images.
    """
    names = metrics.columns.drop("total")
    figure = Figure(
        figsize=(3 + 2.6 * len(names), 1.2 + 0.4 * groups.nunique()), layout="constrained", dpi=110
    )
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        for group, values in metrics[name].groupby(groups, sort=False):
            images = metrics["total"][values.index[0]] if name in _SHARES else nan
            (mean,) = axes.plot([values.mean()], [group], "o", clip_on=False, zorder=3)
            axes.plot([*values], [group] * len(values), "|", color=mean.get_color())
            axes.hlines([group], *interval([*values], images), colors=mean.get_color())
        if name in _SHARES or name.endswith("/f1"):  # from 0 to 1, unlike Student's intervals
            axes.set_xlim(*pd.Series(axes.get_xlim()).clip(0, 1))
        axes.set_xlabel(name)
        axes.grid(axis="x", alpha=0.3)
    figure.suptitle("means with 95% intervals, and ticks for runs", fontsize="small")
    panels[0].set_ylim(groups.nunique() - 0.5, -0.5)  # the first on top
    return figure
