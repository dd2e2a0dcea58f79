"""The image of a benchmark."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def benchmark_figure(sections: Sequence[dict[str, Any]], caption: str) -> Figure:
    """Draws bars for the variants of each section, with whiskers from minimum to maximum and the ratios as text.

    Args:
        sections: As :meth:`benchmarks.timing.Section.as_dict` returns them.
        caption: What stands below.
    """
    rows = [len(section["variants"]) for section in sections]
    figure = Figure(figsize=(9, 0.36 * sum(rows) + 0.8 * len(rows) + 0.4), layout="constrained", dpi=110)
    grid = figure.subplots(len(sections), 1, squeeze=False, height_ratios=[count + 0.6 for count in rows])
    for axes, section in zip(grid[:, 0], sections, strict=True):
        _draw(axes, section)
    figure.supxlabel(caption, fontsize=7, color="grey", wrap=True)
    return figure


def _draw(axes: Axes, section: dict[str, Any]) -> None:
    variants = section["variants"]
    medians = [variant["median"] for variant in variants]
    whiskers = [
        [variant["median"] - variant["min"] for variant in variants],
        [variant["max"] - variant["median"] for variant in variants],
    ]
    colours = ["0.75", *["C0"] * (len(variants) - 1)]
    names = [variant["name"] for variant in variants]
    axes.barh(range(len(names)), medians, height=0.7, color=colours, alpha=0.75, xerr=whiskers, capsize=3, ecolor="0.2")
    axes.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first variant on top
    axes.set_xlim(0, 1.4 * max(variant["max"] for variant in variants))
    for position, variant in enumerate(variants):
        value = variant["median"]
        text = f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
        text += f"   {_ratio(variant['compared'])}" if position else ""
        axes.annotate(text, (variant["max"], position), (6, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_title(section["title"], fontsize=9, loc="left", parse_math=False)
    if "pair" in section:
        pair = section["pair"]
        text = f"{pair['variant']} / {pair['base']}: {_ratio(pair)}"
        axes.set_xlabel(text, fontsize=7, loc="right", color="0.35", parse_math=False)
    axes.tick_params(axis="x", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _ratio(spread: dict[str, Any]) -> str:
    return f"{spread['median']:.2f} x ({spread['min']:.2f} to {spread['max']:.2f})"
