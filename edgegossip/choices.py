"""The nearest valid choice, for every error message about a word that is not known. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: object, choices: Iterable[str], prefix: str = "") -> str:
    """ "; did you mean x?" for the choice nearest in spelling, with `prefix` before it; empty when none is near."""
    import difflib  # here: nobody who makes no mistake needs it

    near = difflib.get_close_matches(str(word), list(choices), n=1, cutoff=0.5)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
