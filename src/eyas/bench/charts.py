"""Draws charts as inline SVG; report_charts.py decides what they show.

Every drawing is WIDTH units wide, about the width of a phone, so text has nearly the same size on every screen. Bars
differ by fill pattern, lines differ by dash and marker, and values are written beside them. So the charts are readable
in black and white. Colors are CSS variables of report.css. Ids of fill patterns start with the id of their chart,
because all charts are in one page.

    arithmetic            2.31×     <- label, note
    ▨▨▨▨▨▨▨▨▨▨▨▨▨▨▨▨ 9.81 ms        <- a bar for each series, followed by its value
    ██████ 4.25 ms
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

WIDTH = 360
Fill = Literal["solid", "hatch", "dots", "open"]
Point = tuple[float, float]
Mark = tuple[float, str]
"""A value on an axis, and the text beside it."""
BAR_HEIGHT, BAR_GAP = 13, 3
LABEL_HEIGHT, ROW_GAP = 20, 13
LINE_HEIGHT = 16  # of a text
VALUE_WIDTH = 74  # right of the longest bar, for its value
MAX_LABEL_CHARS = 40
MAX_MARKED_POINTS = 12  # on a longer line, only the last point has a marker
MAX_PANEL_VALUES = 11  # in a wider panel, only every second value is written

TEXT = Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>')
RECT = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="{}"/>')
PATH = Markup('<path class="{}" d="{}"/>')
CIRCLE = Markup('<circle class="solid" cx="{:.1f}" cy="{:.1f}" r="4"/>')


@dataclass(frozen=True)
class Drawing:
    """SVG elements on an area of WIDTH x `height` units."""

    height: float
    elements: Markup


@dataclass(frozen=True)
class Bar:
    """A horizontal bar.

    Attributes:
        fill: The fill pattern.
        value: The length of the bar, at least 0.
        text: The text to the right of the bar.
        interval: The 95% interval, drawn as a line on the bar; None draws no line.
    """

    fill: Fill
    value: float
    text: str
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class BarGroup:
    """Bars below a label. note: a text to the right of the label, such as a speed-up."""

    label: str
    note: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Line:
    """A line through (x, y) points. label: the text at the right end of the line."""

    fill: Literal["solid", "open"]
    label: str
    points: Sequence[Point]


def draw_bars(
    ident: str, groups: Sequence[BarGroup], legend: Sequence[tuple[Fill, str]] = (), mark: Mark | None = None
) -> Drawing:
    """Draws groups of horizontal bars that start at zero.

    Args:
        ident: The HTML id of the chart.
        groups: The groups, from top to bottom.
        legend: The fill patterns with their names; empty draws no legend.
        mark: A value, drawn as a dashed vertical line through all groups, and the text below this line. None: no line.
    """
    bars = [bar for group in groups for bar in group.bars]
    scale = (WIDTH - VALUE_WIDTH) / max([1e-9, *(max([bar.value, *(bar.interval or ())]) for bar in bars)])
    parts, x, y = [], 0.0, 26.0 if legend else 0.0
    for fill, name in legend:
        parts += [_rect(ident, fill, x, 1, 18, 12), _text("small", x + 24, 12, name)]
        x += 42 + 6.6 * len(name)
    for group in groups:
        parts += [_text("label", 0, y + 13, group.label), _text("note end", WIDTH, y + 13, group.note)]
        y += LABEL_HEIGHT
        top = y
        for bar in group.bars:
            end = bar.value * scale
            parts.append(_rect(ident, bar.fill, 0, y, end, BAR_HEIGHT))
            if bar.interval is not None:
                low, end = (max(side * scale, 0) for side in bar.interval)
                line = f"M{low:.1f} {y + BAR_HEIGHT / 2}H{end:.1f}"
                parts.append(PATH.format("halo", line))
                parts.append(PATH.format("whisker", f"{line}M{end:.1f} {y + 2}v{BAR_HEIGHT - 4}"))
            parts.append(_text("figure", max(end, bar.value * scale) + 7, y + BAR_HEIGHT - 2, bar.text))
            y += BAR_HEIGHT + BAR_GAP
        if mark is not None:
            parts.append(PATH.format("mark", f"M{mark[0] * scale:.1f} {top - 3}V{y}"))
        y += ROW_GAP
    if mark is not None:
        x = mark[0] * scale
        parts.append(_text("small" if x < WIDTH / 2 else "small end", x, y + 2, mark[1]))
        y += 10
    return Drawing(y - 2, Markup().join(parts))


def draw_lines(lines: Sequence[Line], ticks: Sequence[Mark], x_name: str, label_width: float = 94) -> Drawing:
    """Draws lines over one x axis. The y axis includes zero.

    Args:
        lines: The lines.
        ticks: x values with the texts below them. Requirement: the first and the last are the ends of the axis.
        x_name: The title of the x axis.
        label_width: The space for the labels of the lines, in units.
    """
    left, right, top, bottom = 42, WIDTH - label_width, 14, 170
    values = [0.0, *(y for line in lines for _, y in line.points)]
    # A loss may be a probability with a negative sign.
    y_ticks = [-tick for tick in _ticks(-min(values))[:0:-1]] + _ticks(max(values))
    first, last = ticks[0][0], ticks[-1][0]
    scale_x = (right - left) / max(last - first, 1e-9)
    scale_y = (bottom - top) / max(y_ticks[-1] - y_ticks[0], 1e-9)

    def place(x: float, y: float) -> Point:
        return left + (x - first) * scale_x, bottom - (y - y_ticks[0]) * scale_y

    parts = []
    for tick in y_ticks:
        _, y = place(first, tick)
        parts.append(PATH.format("grid" if tick else "axis", f"M{left} {y:.1f}H{right + 6}"))
        parts.append(_text("small end", left - 8, y + 4, f"{tick:g}"))
    parts += [_text("small middle", place(x, 0)[0], bottom + 18, name) for x, name in ticks]
    parts.append(_text("small middle", (left + right) / 2, bottom + 36, x_name))
    for line in lines:
        points = [place(*point) for point in line.points]
        parts.append(_polyline(line.fill, points))
        for x, y in points if len(points) <= MAX_MARKED_POINTS else points[-1:]:
            parts.append(CIRCLE.format(x, y) if line.fill == "solid" else _rect("", "open", x - 4, y - 4, 8, 8))
    label_y = -math.inf
    for y, label in sorted((place(*line.points[-1])[1], line.label) for line in lines):
        label_y = max(y, label_y + LINE_HEIGHT)  # lines may end at the same height
        parts.append(_text("label", right + 12, label_y + 4, _clip(label, 11)))
    return Drawing(bottom + 42, Markup().join(parts))


def draw_panels(panels: Sequence[tuple[str, Sequence[float | None]]], columns: Sequence[str], x_name: str) -> Drawing:
    """Draws one small line chart for each panel, all with the y axis from 0 to 1.

    Args:
        panels: The label and the values of each panel. A value of None has no point.
        columns: The texts below the values, one for each.
        x_name: The title of the x axis.
    """
    left, height, step_y = 16, 40, 84
    step_x = (WIDTH - 2 * left) / max(len(columns) - 1, 1)
    every = 1 if len(columns) <= MAX_PANEL_VALUES else 2
    parts, y = [], 0
    for label, shares in panels:
        base = y + step_y - 10
        parts += [_text("label", 0, y + 13, label), PATH.format("axis", f"M0 {base}H{WIDTH}")]
        known = [(left + i * step_x, share) for i, share in enumerate(shares) if share is not None]
        parts.append(_polyline("solid", [(x, base - share * height) for x, share in known]))
        for number, (x, share) in enumerate(known):
            top = base - share * height
            parts += [PATH.format("stem", f"M{x:.1f} {top:.1f}V{base}"), CIRCLE.format(x, top)]
            if number % every == 0:
                parts.append(_text("small middle", x, top - 7, f"{share:.0%}"))
        y += step_y
    parts += [_text("small middle", left + index * step_x, y + 6, name) for index, name in enumerate(columns)]
    parts.append(_text("small middle", WIDTH / 2, y + 24, x_name))
    return Drawing(y + 30, Markup().join(parts))


def _rect(ident: str, fill: Fill, x: float, y: float, width: float, height: float) -> Markup:
    """Draws a box half a unit smaller on every side, so that the outer edge of its stroke is at the exact size."""
    paint = f"url(#{ident}-{fill})" if fill in ("hatch", "dots") else "none"
    return RECT.format(fill, x + 0.5, y + 0.5, max(width - 1, 0.5), height - 1, paint)


def _polyline(fill: str, points: Sequence[Point]) -> Markup:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Markup('<polyline class="line {}" points="{}"/>').format(fill, path)


def _text(style: str, x: float, y: float, text: str) -> Markup:
    return TEXT.format(style, x, y, _clip(text, MAX_LABEL_CHARS))


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _ticks(highest: float) -> list[float]:
    """Returns three to six round values from 0 to at least `highest`; [0.0] if `highest` is 0 or negative."""
    if highest <= 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(max(highest, 1e-9)))
    step = next(factor * power for factor in (0.25, 0.5, 1.0, 2.0) if highest <= 5 * factor * power)
    return [index * step for index in range(math.ceil(highest / step - 1e-9) + 1)]
