"""How long something is, in words: apart from proofs, because who prints a time needs none of the rest."""

from __future__ import annotations


def format_seconds(value: float) -> str:
    """Return a duration as a person reads it: 0.42 s, 12 s, 4 min 10 s, 2 h 5 min."""
    if value < 120:
        return f"{value:.3g} s" if value < 10 else f"{value:.4g} s"
    if value < 7200:
        return f"{int(value // 60)} min {value % 60:.0f} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"
