# SPDX-License-Identifier: Apache-2.0
"""Draws a harness.Plot of a bench's rows as SVG: lines over sizes, or bars by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from harness import Plot, number

matplotlib.use("svg")
# Text stays text, and the same figures give the same file.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "cowshed", "font.size": 10})

# Told apart without colour too: by marker, and in print by lightness (Okabe and Ito's palette).
_COLOURS = ("#0072b2", "#d55e00", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#000000")
_MARKERS = "osD^vPX"
_PEERS = ("btrfs", "fio", "qcow2", "qemu", "reflink")  # bars of another colour than ours


def _leading_number(text: str) -> float:
    found = re.match(r"[\d,.]+", text)
    return float(found.group().replace(",", "")) if found else 0.0


def _common_parts(names: list[str]) -> set[str]:
    """Comma-separated parts that all names share: they say nothing in a legend."""
    parts = [set(name.split(", ")) for name in names]
    return set.intersection(*parts) if len(parts) > 1 else set()


def _labels(names: list[str]) -> dict[str, str]:
    common = _common_parts(names)
    return {
        name: ", ".join(part for part in name.split(", ") if part not in common) or name
        for name in names
    }


def _draw_lines(axes: Axes, rows: list[dict[str, Any]], log_x: bool) -> None:
    if log_x:
        axes.set_xscale("log")
    names = list(dict.fromkeys(row["what"] for row in rows))
    labels = _labels(names)
    ticks = sorted({_leading_number(row["size"]) for row in rows})
    for index, name in enumerate(names):
        mine = sorted(
            (row for row in rows if row["what"] == name),
            key=lambda row: _leading_number(row["size"]),
        )
        x = [_leading_number(row["size"]) for row in mine]
        y = [row["median"] for row in mine]
        style = {"color": _COLOURS[index % 7], "marker": _MARKERS[index % 7]}
        axes.plot(x, y, label=labels[name], linewidth=1.8, markersize=6, **style)
        low, high = [row["min"] for row in mine], [row["max"] for row in mine]
        axes.fill_between(x, low, high, color=_COLOURS[index % 7], alpha=0.12, linewidth=0)
    if len(ticks) <= 8:
        axes.set_xticks(ticks)
        axes.minorticks_off()
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)


def _draw_bars(axes: Axes, rows: list[dict[str, Any]]) -> None:
    labels = _labels([row["what"] for row in rows])
    names = [labels[row["what"]] for row in rows]
    values = [row["median"] for row in rows]
    errors = [
        [row["median"] - row["min"] for row in rows],
        [row["max"] - row["median"] for row in rows],
    ]
    places = range(len(rows))
    colours = [_COLOURS[row["what"].startswith(_PEERS)] for row in rows]
    axes.barh(places, values, xerr=errors, color=colours, height=0.65, capsize=3)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    for place, value in zip(places, values):
        axes.annotate(
            f" {number(value)}", (value, place), va="bottom", xytext=(2, 2), textcoords="offset points"
        )


def draw(plot: Plot, rows: list[dict[str, Any]], path: Path) -> bool:
    """False, and no file, if no row with a figure is chosen."""
    chosen = [row for row in rows if "median" in row and re.search(plot.rows, row["what"])]
    if not chosen:
        return False
    from matplotlib import pyplot

    height = 1.2 + 0.42 * len(chosen) if plot.bars else 4.2
    figure, axes = pyplot.subplots(figsize=(8.6, height), layout="constrained")
    axes.set_title(plot.title, loc="left", fontsize=11, fontweight="bold")
    if plot.bars:
        _draw_bars(axes, chosen)
        axes.set_xlabel(plot.y)
        value_axis, scale = axes.xaxis, axes.set_xscale
    else:
        _draw_lines(axes, chosen, plot.log_x)
        axes.set_xlabel(plot.x)
        axes.set_ylabel(plot.y)
        value_axis, scale = axes.yaxis, axes.set_yscale
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    if plot.log_y:
        scale("log")
    elif not plot.bars:
        axes.set_ylim(bottom=0)
    value_axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    return True
