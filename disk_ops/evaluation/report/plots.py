"""Plots as SVG, drawn by matplotlib."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from disk_ops.evaluation.protocol import Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEEDS_MATPLOTLIB = "The plots are left out, as matplotlib is not installed: pip install matplotlib"

# Okabe and Ito's colours, which people of any colour vision can tell apart, then others.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c564b", "#7f7f7f", "#b5bd00")
_MARKERS = "osD^vPX<>*"
_DASHES = ("-", "--", ":", "-.")
_INSIDE = 6  # curves up to which the legend lies between them
_MANY, _MANY_BARS = 12, 60  # categories, and bars in all, up to which bars stand; more lie on their side
_LONG = 50  # letters below bars that fit beside each other


def plotting_is_possible() -> bool:
    """Whether matplotlib is there."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def plot_svg(plot: Plot) -> bytes:
    """Draw a plot as SVG, the same bytes for the same plot. Values that are missing or not finite are left out.

    Raises:
        ValueError: the kind isn't known, or a series hasn't as many x as y.
        ImportError: matplotlib is missing.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    _check(plot)
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the user's own settings are
        mpl.rcParams.update({"svg.hashsalt": "disk_ops", "svg.fonttype": "path", "axes.axisbelow": True})
        figure = Figure(figsize=_size(plot), layout="constrained")
        axes = figure.add_subplot()
        _DRAW[plot.kind](axes, plot)
        axes.set_title(_plain(plot.title), fontsize=11, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        _add_legend(axes, figure, beside=plot.kind != "lines" or len(plot.series) > _INSIDE)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _check(plot: Plot) -> None:
    if plot.kind not in _DRAW:
        raise ValueError(f"plot {plot.title!r}: kind must be one of {', '.join(_DRAW)}, got {plot.kind!r}")
    for name, (x, y) in plot.series.items():
        if len(x) != len(y):
            raise ValueError(f"plot {plot.title!r}: series {name!r} has {len(x)} x for {len(y)} y")


def _size(plot: Plot) -> tuple[float, float]:
    """Inches."""
    if _lie(plot):
        return 7.0, min(60.0, 1.2 + len(_categories(plot)) * (0.12 + 0.11 * max(1, len(plot.series))))
    return 7.0, 4.0


def _lie(plot: Plot) -> bool:
    """Whether bars lie on their side, one below the other."""
    categories = len(_categories(plot)) if plot.kind == "bars" else 0
    return categories > _MANY or categories * len(plot.series) > _MANY_BARS


def _draw_lines(axes: Axes, plot: Plot) -> None:
    from matplotlib.ticker import MaxNLocator

    names = _named(plot)
    for index, (name, (x, y)) in enumerate(plot.series.items()):
        positions = [names.index(str(value)) for value in x] if names else [_value(value) for value in x]
        axes.plot(
            positions,
            [_value(value) for value in y],
            label=_plain(name),
            color=_COLORS[index % len(_COLORS)],
            marker=_MARKERS[index % len(_MARKERS)] if len(x) <= 40 else None,
            markersize=4,
            linewidth=1.6,
            linestyle=_DASHES[index // len(_COLORS) % len(_DASHES)],
        )
    if names:
        axes.set_xticks(range(len(names)), [_plain(_short(name)) for name in names])
    elif all(float(value).is_integer() for x, _ in plot.series.values() for value in map(_value, x)):
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 3, 5, 10]))
    low, high = _from_zero(plot)
    axes.set_ylim(None if low is None else low - 0.02 * (high or axes.get_ylim()[1]), high)  # markers at 0 stay whole
    axes.set_xlabel(_plain(plot.x_label))
    axes.set_ylabel(_plain(plot.y_label))
    axes.grid(alpha=0.3)


def _draw_bars(axes: Axes, plot: Plot) -> None:
    categories = _categories(plot)
    lying = _lie(plot)
    thickness = 0.8 / max(1, len(plot.series))
    for index, (name, (x, y)) in enumerate(plot.series.items()):
        heights = dict(zip(map(str, x), map(_value, y), strict=True))
        positions = np.arange(len(categories)) + (index + 0.5) * thickness - 0.4
        values = [heights.get(category, math.nan) for category in categories]
        style: dict[str, Any] = {"label": _plain(name), "color": _COLORS[index % len(_COLORS)]}
        style |= {"hatch": ("", "//", "..", "xx")[index // len(_COLORS) % 4], "edgecolor": "white", "linewidth": 0.3}
        if lying:
            axes.barh(positions, values, thickness, **style)
        else:
            axes.bar(positions, values, thickness, **style)
    labels = [_plain(_short(category)) for category in categories]
    if lying:
        axes.set_yticks(range(len(categories)), labels, fontsize=8)
        axes.set_ylim(len(categories) - 0.5, -0.5)  # the first one on top
    else:
        turned = sum(map(len, labels)) > _LONG
        axes.set_xticks(
            range(len(categories)), labels, rotation=30 if turned else 0, ha="right" if turned else "center"
        )
    (axes.set_ylabel if lying else axes.set_xlabel)(_plain(plot.x_label))
    (axes.set_xlabel if lying else axes.set_ylabel)(_plain(plot.y_label))
    (axes.set_xlim if lying else axes.set_ylim)(*_from_zero(plot))
    axes.grid(axis="x" if lying else "y", alpha=0.3)


def _draw_points(axes: Axes, plot: Plot) -> None:
    """Hollow markers, each series within those before it, so that points in one place are all seen."""
    for index, (name, (x, y)) in enumerate(plot.series.items()):
        axes.plot(
            [_value(value) for value in x],
            [_value(value) for value in y],
            label=_plain(name),
            color=_COLORS[index % len(_COLORS)],
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=max(3, 12 - 3 * index),
            fillstyle="none",
            linestyle="none",
        )
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel(_plain(plot.x_label))
    axes.set_ylabel(_plain(plot.y_label))
    axes.grid(alpha=0.3)


_DRAW = {"lines": _draw_lines, "bars": _draw_bars, "points": _draw_points}


def _add_legend(axes: Axes, figure: Any, beside: bool) -> None:
    handles, _ = axes.get_legend_handles_labels()
    if handles and beside:
        figure.legend(handles=handles, loc="outside right upper", fontsize=8, frameon=False)
    elif handles:
        axes.legend(handles=handles, fontsize=9, framealpha=0.8)


def _from_zero(plot: Plot) -> tuple[float | None, float | None]:
    """Limits of the axis of values: from 0 where no value is negative, up to 1 where all are 0."""
    values = [number for _, y in plot.series.values() for value in y if math.isfinite(number := _value(value))]
    if not values or min(values) < 0:
        return None, None
    return 0.0, None if max(values) > 0 else 1.0


def _named(plot: Plot) -> list[str]:
    """The names on the x axis, in order of appearance; none where it has numbers."""
    values = [value for x, _ in plot.series.values() for value in x]
    return list(dict.fromkeys(map(str, values))) if any(isinstance(value, str) for value in values) else []


def _categories(plot: Plot) -> list[str]:
    return list(dict.fromkeys(str(value) for x, _ in plot.series.values() for value in x))


def _value(value: object) -> float:
    """A number that can be drawn; NaN, which leaves a gap, otherwise."""
    number = float(value) if isinstance(value, int | float | np.number) else math.nan
    return number if math.isfinite(number) else math.nan


def _plain(text: str) -> str:
    """A text that matplotlib shows as it is: no mathematics, no label that it hides, no lines, no missing glyphs."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text).replace("$", r"\$")
    return f"\N{ZERO WIDTH SPACE}{shown}" if shown.startswith("_") else shown


def _short(text: str, longest: int = 28) -> str:
    return text if len(text) <= longest else f"…{text[-longest + 1 :]}"
