"""The nearest valid choice, for every error message about a word that is not known. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 6  # choices that are equally near; more are no help


def did_you_mean(word: object, choices: Iterable[str], prefix: str = "") -> str:
    """ "; did you mean x?" for the choice nearest in spelling, "; did you mean x, y or z?" for
    those that are equally near, each with `prefix` before it; empty when none is near, or too
    many."""
    import difflib  # here: nobody who makes no mistake needs it

    known = list(dict.fromkeys(choices))
    near = difflib.get_close_matches(str(word), known, n=max(1, len(known)), cutoff=0.5)
    matcher = difflib.SequenceMatcher(b=str(word))

    def nearness(choice: str) -> float:
        matcher.set_seq1(choice)
        return matcher.ratio()

    nearest = [prefix + choice for choice in known if near and choice in near and nearness(choice) == nearness(near[0])]
    if not 0 < len(nearest) <= _MOST:
        return ""
    *first, last = nearest
    return f"; did you mean {', '.join(first)}{' or ' if first else ''}{last}?"
