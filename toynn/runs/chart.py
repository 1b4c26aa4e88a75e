"""Curves as inline SVG, in style.py's colours, readable in light and dark mode.

Example:

    chart("loss", {"training": points, "validation": points}, {"byte bigram": 2.46})
"""

import math
from collections.abc import Callable, Mapping, Sequence

from toynn.runs.html import Markup, tag

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 30, 30  # room around the curves
POINTS = 400  # most points of a curve; a longer curve keeps the extremes of each stretch
DOTTED = 40  # a curve of at most so many points has a dot for each
LETTER = 6.6  # width of a letter in a legend

Point = tuple[float, float]


def short(value: float) -> str:
    """Return a number in few characters: 12k, 2.5, 3e-05."""
    if value != 0 and not 1e-3 <= abs(value) < 1e9:
        return f"{value:.3g}"
    for unit, unit_value in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * unit_value:
            return f"{value / unit_value:.4g}{unit}"
    return f"{value:.4g}"


def chart(
    title: str,
    curves: Mapping[str, Sequence[Point]],
    levels: Mapping[str, float] | None = None,
) -> Markup:
    """Return a chart of curves over the iterations; ``levels`` are dotted horizontal lines.

    At least one curve must have points. If all values are above 0, the reader can open a second
    drawing with a logarithmic scale, without a script.
    """
    levels = levels or {}
    ys = [y for curve in curves.values() for _, y in curve] + list(levels.values())
    plain = _drawing(title, curves, levels, ticks, float, "linear")
    if min(ys) <= 0:
        return tag("figure", tag("figcaption", title), plain)
    name = tag("summary", "logarithmic scale")
    other = _drawing(title, curves, levels, log_ticks, math.log10, "logarithmic")
    return tag(
        "figure", tag("figcaption", title), tag("details", name, other, class_="scale"), plain
    )


def _drawing(
    title: str,
    curves: Mapping[str, Sequence[Point]],
    levels: Mapping[str, float],
    ticks_of: Callable[[float, float], list[float]],
    scaled: Callable[[float], float],
    kind: str,
) -> Markup:
    """Return the drawing of a chart whose values are ``scaled``."""
    points = [point for curve in curves.values() for point in curve]
    ys = [y for _, y in points] + list(levels.values())
    left, right = min(0, *(x for x, _ in points)), max(x for x, _ in points)
    y_ticks = ticks_of(min(ys), max(ys))
    low, high = scaled(min(*ys, y_ticks[0])), scaled(max(*ys, y_ticks[-1]))
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            round(LEFT + (x - left) / ((right - left) or 1) * inner_w, 1),
            round(TOP + (high - scaled(y)) / ((high - low) or 1) * inner_h, 1),
        )

    parts: list[Markup] = []
    for value in y_ticks:
        _, y = place(left, value)
        parts.append(tag("line", x1=LEFT, y1=y, x2=WIDTH - RIGHT, y2=y, class_="grid"))
        parts.append(tag("text", short(value), x=LEFT - 6, y=y + 4, class_="tick end"))
    for value in ticks(left, right, 6):
        if left <= value <= right and value == int(value):
            x = place(value, ys[0])[0]
            where = "tick end" if x > WIDTH - 40 else "tick middle"
            parts.append(tag("text", short(value), x=x, y=HEIGHT - 10, class_=where))
    for value in levels.values():
        _, y = place(left, value)
        parts.append(tag("line", x1=LEFT, y1=y, x2=WIDTH - RIGHT, y2=y, class_="level"))
    for k, (name, curve) in enumerate(curves.items()):
        drawn = " ".join(f"{x},{y}" for x, y in (place(*point) for point in thinned(curve)))
        parts.append(tag("polyline", points=drawn, class_=f"curve c{k % 4}"))
        if len(curve) <= DOTTED:
            parts += [_dot(place(*point), k, name, point) for point in curve]
    parts += _legend([*curves, *levels], len(curves))
    label = f"{title}: {', '.join(curves)}" + (", logarithmic" if kind != "linear" else "")
    box = f"0 0 {WIDTH} {HEIGHT}"
    return tag("svg", *parts, viewBox=box, role="img", aria_label=label, class_=kind)


def _dot(at: Point, k: int, name: str, point: Point) -> Markup:
    said = tag("title", f"{name} {point[1]:.6g} at step {point[0]:.0f}")
    # The group holds a title, which browsers show when the mouse is over the circle.
    return tag("g", said, tag("circle", cx=at[0], cy=at[1], r=3, class_=f"dot c{k % 4}"))


def _legend(names: Sequence[str], curves: int) -> list[Markup]:
    parts, x = [], float(LEFT)
    for k, name in enumerate(names):
        kind = f"curve c{k % 4}" if k < curves else "level"
        parts.append(tag("line", x1=round(x), y1=14, x2=round(x + 18), y2=14, class_=kind))
        parts.append(tag("text", name, x=round(x + 23), y=18, class_="legend"))
        x += 23 + LETTER * len(name) + 16
    return parts


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return about ``most`` round numbers; the first and the last enclose low and high."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        span = abs(high) or 1.0
        low, high = low - span / 2, high + span / 2
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next(by for by in (1, 2, 5, 10, 20) if span / (step * by) <= most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten that enclose low and high.

    Over more than two decades the ticks are powers of ten only, or every n-th power.
    """
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    if last - first > 2:
        step = math.ceil((last - first) / 6)
        return [10.0**k for k in range(first, last + step, step)]
    steps = [by * 10.0**k for k in range(first, last) for by in (1, 2, 5)] + [10.0**last]
    begin = max(k for k, value in enumerate(steps) if value <= low * (1 + 1e-9))
    end = min(k for k, value in enumerate(steps) if value >= high * (1 - 1e-9))
    return steps[begin : max(end, begin + 1) + 1]


def thinned(curve: Sequence[Point], most: int = POINTS) -> list[Point]:
    """Return at most ``most`` points of a curve; the extremes of each stretch are kept."""
    if len(curve) <= most:
        return list(curve)
    size = math.ceil(len(curve) / (most // 2))
    kept = []
    for begin in range(0, len(curve), size):
        part = range(begin, min(begin + size, len(curve)))
        ends = {min(part, key=lambda k: curve[k][1]), max(part, key=lambda k: curve[k][1])}
        kept += [curve[k] for k in sorted(ends)]
    return kept
