"""Format numbers for people, the same on charts, in tables and in the terminal."""

from __future__ import annotations

import math


def compact(value: float) -> str:
    """Three significant digits: 0.0123, 4.56, 789, 12.3k, 4.5M, 2e-5."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    for scale, suffix in ((1e12, ""), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= 0.9995 * scale:
            return f"{value / scale:.3g}{suffix}" if suffix else f"{value:.3g}"
    return f"{value:.3g}".replace("e-0", "e-")


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def duration(seconds: float) -> str:
    """At most two units: 0.84 s, 12.3 s, 2m 38s, 1h 04m, 2d 03h."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 0.1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    hours = round(seconds / 3600)
    return f"{hours // 24}d {hours % 24:02d}h"


def rough(seconds: float) -> str:
    """A duration in whole seconds, for a display that keeps changing."""
    return f"{seconds:.0f} s" if seconds < 59.5 else duration(seconds)
