"""Charts as inline SVG, each a <figure> with a title, a sentence, a text alternative and its figures as a table.

Every chart is WIDTH units wide, about a phone's column, and grows in rows: text keeps nearly the same size on every
screen. Series differ by fill pattern or by dash and marker, and carry their figures, so black and white suffices.
Colours are CSS variables of report.css; pattern ids start with the chart's ident, since ids are shared by the page.

    arithmetic            2.31×     <- label, note
    ▨▨▨▨▨▨▨▨▨▨▨▨▨▨▨▨ 9.81 ms        <- one bar a series, its figure behind it
    ██████ 4.25 ms
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

WIDTH = 360
Fill = Literal["solid", "hatch", "dots", "open"]

BAR_HEIGHT = 13
BAR_GAP = 3
LABEL_HEIGHT = 20
ROW_GAP = 13
VALUE_ROOM = 74  # right of the longest bar, for its figure


@dataclass(frozen=True)
class Table:
    """A chart's figures: header cells, then rows of as many cells. Plain text, escaped here."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Caption:
    """What stands around a drawing. ident is unique on the page and a valid HTML id; the rest is plain text."""

    ident: str
    title: str
    sentence: str
    table: Table


@dataclass(frozen=True)
class Key:
    """One entry of a legend."""

    fill: Fill
    name: str


@dataclass(frozen=True)
class Bar:
    """value >= 0 in the chart's unit; text is the figure as shown; low and high draw an interval."""

    fill: Fill
    value: float
    text: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class BarRow:
    label: str
    note: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Line:
    """One value for each category of the x axis; None leaves a gap."""

    fill: Literal["solid", "open"]
    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Panel:
    """One small multiple: shares in 0..1, from left to right; None leaves a gap."""

    label: str
    shares: tuple[float | None, ...]


@dataclass(frozen=True)
class Segment:
    fill: Fill
    name: str
    value: float
    text: str


# --- charts ----------------------------------------------------------------------------------------------------------


def bar_chart(caption: Caption, keys: Sequence[Key], rows: Sequence[BarRow], mark: tuple[float, str] | None) -> str:
    """Groups of horizontal bars from zero; mark draws a dashed line through every group at a value, with its name."""
    ends = [end for row in rows for bar in row.bars for end in (bar.value, bar.high) if end is not None]
    scale = (WIDTH - VALUE_ROOM) / max([*ends, 1e-9])
    legend, y = _legend(caption.ident, keys, 0)
    parts = [legend]
    for row in rows:
        parts.append(_text(0, y + 13, _clip(row.label, 40), "label"))
        parts.append(_text(WIDTH, y + 13, row.note, "note end"))
        y += LABEL_HEIGHT
        for index, bar in enumerate(row.bars):
            parts.append(_bar(caption.ident, bar, y + index * (BAR_HEIGHT + BAR_GAP), scale))
        height = len(row.bars) * (BAR_HEIGHT + BAR_GAP)
        if mark is not None:
            parts.append(f'<path class="mark" d="M{mark[0] * scale:.1f} {y - 3}v{height + 3}"/>')
        y += height + ROW_GAP
    if mark is not None:
        x = mark[0] * scale
        parts.append(_text(x, y + 2, mark[1], "small" if x < WIDTH / 2 else "small end"))
        y += 10
    return _figure(caption, y - 2, "".join(parts))


def line_chart(caption: Caption, categories: Sequence[str], x_name: str, lines: Sequence[Line]) -> str:
    """Lines over evenly spaced categories, y from zero; each line carries its name at its end."""
    left, right, top, bottom = 42, WIDTH - 94, 14, 190
    ticks = _ticks(max([value for line in lines for value in line.values if value is not None] or [1.0]))
    step_x = (right - left) / max(len(categories) - 1, 1)
    scale = (bottom - top) / ticks[-1]
    parts = []
    for tick in ticks:
        y = bottom - tick * scale
        parts.append(f'<path class="{"axis" if tick == 0 else "grid"}" d="M{left} {y:.1f}H{right + 6}"/>')
        parts.append(_text(left - 8, y + 4, f"{tick:g}", "small end"))
    for index, category in enumerate(categories):
        parts.append(_text(left + index * step_x, bottom + 18, category, "small middle"))
    parts.append(_text((left + right) / 2, bottom + 36, x_name, "small middle"))
    names = []
    for line in lines:
        points = [
            (left + index * step_x, bottom - value * scale)
            for index, value in enumerate(line.values)
            if value is not None
        ]
        parts.append(_polyline(points, line.fill))
        parts.extend(_marker(x, y, line.fill) for x, y in points)
        if points:
            names.append((points[-1][1], line.name))
    parts.extend(_text(right + 12, y + 4, _clip(name, 11), "label") for y, name in _spread(names, 16))
    return _figure(caption, bottom + 42, "".join(parts))


def curve_chart(caption: Caption, points: Sequence[tuple[float, float]]) -> str:
    """A line over updates, zero in sight; points are (update, value), and the last value is written at its end."""
    left, right, top, bottom = 42, WIDTH - 52, 14, 150
    (last_x, last_y), values = points[-1], [y for _, y in points]
    ticks = _ticks(max(values)) if max(values) > 0 else [0.0]
    if min(values) < 0:  # a loss that is a chance with its sign turned
        ticks = [-tick for tick in _ticks(-min(values))[:0:-1]] + ticks
    scale_x, scale_y = (right - left) / last_x, (bottom - top) / (ticks[-1] - ticks[0])
    parts = []
    for tick in ticks:
        y = bottom - (tick - ticks[0]) * scale_y
        parts.append(f'<path class="{"axis" if tick == 0 else "grid"}" d="M{left} {y:.1f}H{right + 6}"/>')
        parts.append(_text(left - 8, y + 4, f"{tick:g}", "small end"))
    for share in (0, 0.5, 1):
        style = "small middle" if share else "small"
        parts.append(_text(left + share * (right - left), bottom + 18, f"{share * last_x:,.0f}", style))
    parts.append(_text((left + right) / 2, bottom + 36, "updates", "small middle"))
    drawn = [(left + x * scale_x, bottom - (y - ticks[0]) * scale_y) for x, y in points]
    parts += [_polyline(drawn, "solid"), _marker(*drawn[-1], "solid")]
    parts.append(_text(right + 10, drawn[-1][1] + 4, f"{last_y:.2f}", "figure"))
    return _figure(caption, bottom + 42, "".join(parts))


def panel_chart(caption: Caption, panels: Sequence[Panel], columns: Sequence[str], x_name: str) -> str:
    """Small multiples, one a row: a line of shares with its percentages, all on the same scale of 0 to 100%."""
    left, height, step_y = 16, 40, 84
    step_x = (WIDTH - 2 * left) / max(len(columns) - 1, 1)
    parts = []
    for row, panel in enumerate(panels):
        base = row * step_y + step_y - 10
        parts.append(_text(0, row * step_y + 13, _clip(panel.label, 40), "label"))
        parts.append(f'<path class="axis" d="M0 {base}H{WIDTH}"/>')
        points = [
            (left + index * step_x, base - share * height, share)
            for index, share in enumerate(panel.shares)
            if share is not None
        ]
        parts.append(_polyline([(x, y) for x, y, _ in points], "solid"))
        for x, y, _ in points:
            parts.append(f'<path class="stem" d="M{x:.1f} {y:.1f}V{base}"/>')
            parts.append(_marker(x, y, "solid"))
        # Beyond eleven columns the percentages would touch: then every second one is in the table only.
        parts.extend(
            _text(x, y - 7, f"{share:.0%}", "small middle") for x, y, share in points[:: len(columns) // 12 + 1]
        )
    y = len(panels) * step_y + 6
    parts.extend(_text(left + index * step_x, y, name, "small middle") for index, name in enumerate(columns))
    parts.append(_text(WIDTH / 2, y + 18, x_name, "small middle"))
    return _figure(caption, y + 24, "".join(parts))


def stacked_bar(caption: Caption, segments: Sequence[Segment]) -> str:
    """One bar cut into segments, and below it one row a segment: pattern, name, figure, share."""
    total = sum(segment.value for segment in segments) or 1.0
    parts, x, y = [], 0.0, 74
    for segment in segments:
        width = segment.value / total * WIDTH
        parts.append(_rect(caption.ident, segment.fill, (x, 4, width, 40)))
        x += width
        parts.append(_rect(caption.ident, segment.fill, (0, y - 11, 18, 13)))
        parts.append(_text(28, y, segment.name, "label"))
        parts.append(_text(WIDTH - 62, y, segment.text, "figure end"))
        parts.append(_text(WIDTH, y, f"{segment.value / total:.0%}", "figure end"))
        y += 26
    return _figure(caption, y - 12, "".join(parts))


# --- pieces ----------------------------------------------------------------------------------------------------------


def html_table(table: Table, label: str) -> str:
    """A table that scrolls inside its own container; the first cell of a row names it."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in table.rows
    )
    return scroll(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", label)


def scroll(table: str, label: str) -> str:
    """Wraps HTML that may be wider than a phone; it can be reached and scrolled by keyboard."""
    return f'<div class="scroll" role="region" aria-label="{escape(label)}" tabindex="0">{table}</div>'


def _figure(caption: Caption, height: float, body: str) -> str:
    ident, title, sentence = caption.ident, escape(caption.title), escape(caption.sentence)
    cells = [" ".join(f"{name} {cell}" for name, cell in zip(caption.table.header, row, strict=True))
             for row in caption.table.rows]  # fmt: skip
    text = escape(". ".join([caption.sentence.rstrip("."), *cells]) + ".")
    return (
        f'<figure id="{ident}"><figcaption><h3>{title}</h3><p>{sentence}</p></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-labelledby="{ident}-title {ident}-text">'
        f'<title id="{ident}-title">{title}</title><desc id="{ident}-text">{text}</desc>'
        f"<defs>{_patterns(ident)}</defs>{body}</svg>"
        f"<details><summary>The figures as a table</summary>{html_table(caption.table, caption.title)}</details>"
        "</figure>"
    )


def _patterns(ident: str) -> str:
    size = 'patternUnits="userSpaceOnUse" width="5" height="5"'
    ground = '<rect class="ground" width="5" height="5"/>'
    return (
        f'<pattern id="{ident}-hatch" {size} patternTransform="rotate(45)">{ground}'
        '<rect class="stripe" width="1.7" height="5"/></pattern>'
        f'<pattern id="{ident}-dots" {size}>{ground}<circle class="stripe" cx="2.5" cy="2.5" r="1.1"/></pattern>'
    )


def _rect(ident: str, fill: Fill, box: tuple[float, float, float, float]) -> str:
    x, y, width, height = box
    paint = f' fill="url(#{ident}-{fill})"' if fill in ("hatch", "dots") else ""
    # Half a unit inwards on every side: the stroke then ends where the value does.
    return (
        f'<rect class="{fill}" x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{max(width - 1, 0.5):.1f}" '
        f'height="{height - 1:.1f}"{paint}/>'
    )


def _bar(ident: str, bar: Bar, y: float, scale: float) -> str:
    parts = [_rect(ident, bar.fill, (0, y, bar.value * scale, BAR_HEIGHT))]
    end = bar.value * scale
    if bar.low is not None and bar.high is not None:
        low, high, middle = bar.low * scale, bar.high * scale, y + BAR_HEIGHT / 2
        parts.append(f'<path class="halo" d="M{low:.1f} {middle}H{high:.1f}"/>')
        parts.append(f'<path class="whisker" d="M{low:.1f} {middle}H{high:.1f}M{high:.1f} {y + 2}v{BAR_HEIGHT - 4}"/>')
        end = max(end, high)
    parts.append(_text(end + 7, y + BAR_HEIGHT - 2, bar.text, "figure"))
    return "".join(parts)


def _legend(ident: str, keys: Sequence[Key], y: float) -> tuple[str, float]:
    """The legend as one line, and the y below it."""
    if not keys:
        return "", y
    parts, x = [], 0.0
    for key in keys:
        parts.append(_rect(ident, key.fill, (x, y + 1, 18, 12)))
        parts.append(_text(x + 24, y + 12, key.name, "small"))
        x += 24 + 6.6 * len(key.name) + 18
    return "".join(parts), y + 26


def _polyline(points: Sequence[tuple[float, float]], fill: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="line {fill}" points="{path}"/>'


def _marker(x: float, y: float, fill: str) -> str:
    if fill == "solid":
        return f'<circle class="solid" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    return f'<rect class="open" x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"/>'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _ticks(highest: float) -> list[float]:
    """Round values from 0 to at least `highest`, three to six of them."""
    power = 10.0 ** math.floor(math.log10(max(highest, 1e-9)))
    step = next(factor * power for factor in (0.25, 0.5, 1.0, 2.0) if highest <= 5 * factor * power)
    return [index * step for index in range(math.ceil(highest / step - 1e-9) + 1)]


def _spread(names: Sequence[tuple[float, str]], room: float) -> list[tuple[float, str]]:
    """Names from top to bottom, pushed apart to `room` so that they do not overlap."""
    placed: list[tuple[float, str]] = []
    for y, name in sorted(names):
        placed.append((max(y, placed[-1][0] + room) if placed else y, name))
    return placed
