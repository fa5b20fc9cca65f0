"""Compares what boards must have in common before they train together, said in facts.

A board never sends its data or its labels to be compared: it sends an `Agreement`, a few short
facts about them. Whoever gets one asks `difference`, which answers in a sentence that a user can
act on. A fact that one side lacks is not compared, and a fact that this version does not know is
dropped, so versions can be mixed.

    layout   hash of the tensors that travel       values   how many values travel
    input    "float32 3x32x32"                     target   "10 classes", "float32 24", "none"
    columns  that an input is made of, and         labels   names of the classes, by `names_fact`
    task     "classification", "regression", ...
    base     hash of the frozen parameters         start    sums of the first model (`sums`)
    scale    how inputs are normalised: "none", "together", by each board, or the numbers declared
    plugins  what the run takes from other packages, with their versions

Pure.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from edgegossip.types import DecodeError, UsageError, Vec
from edgegossip.untrusted import printable

Fact: TypeAlias = str | int | list[float]

MAX_BYTES = 4096  # of an agreement on the wire
_MAX_TEXT, _MAX_SUMS, _MAX_WHOLE = 400, 16, 2**63 - 1
_PART = 1 << 20  # values summed at a time: a large model is not to be held in float64
_TIMES = 20  # and inputs of two boards have hardly one unit
_RTOL = 1e-3  # of sums: devices and torch versions initialise alike, but not to the last bit

# (name, kind, words for it, cure), in the order of comparison. What explains most comes first: of
# boards with 8 and 10 classes the layouts differ too, and nobody could do anything with that.
_KNOWN: tuple[tuple[str, type, str, str], ...] = (
    ("task", str, "the task", "set training.task alike on every board"),
    ("input", str, "one input", "every board needs inputs of one shape and type; set data.shape"),
    (
        "columns",
        str,
        "the columns of an input",
        "name them in one order on every board: data.params.columns",
    ),
    ("target", str, "the target", "every board needs targets of one shape and type"),
    (
        "labels",
        str,
        "the labels",
        "say the same names in the same order on every board: data.labels, or the schema of join",
    ),
    ("scale", str, "the normalisation", "set data.normalise, data.mean and data.std alike"),
    ("plugins", str, "what other packages add", "install the same versions on every board"),
    ("values", int, "the number of values that travel", "every board needs the same model"),
    ("layout", str, "the layout of the model", "every board needs the same model"),
    ("base", str, "the frozen part of the model", "load the same weights on every board"),
    ("start", list, "the first model", "set run.seed alike, or begin from the same weights"),
)
_KINDS = {name: kind for name, kind, _, _ in _KNOWN}
_CLASSES = re.compile(r"(\d{1,6}) (classes|labels)\b")


@dataclass(frozen=True, slots=True)
class Agreement:
    """Holds facts by name; those of `_KNOWN` only.

    Raises UsageError for a fact that is unknown, of another kind, too long or not finite.

    Example:
        mine = Agreement({"values": 9610, "input": "float32 3x32x32", "target": "10 classes"})
        text = mine.to_json()
        theirs = Agreement.from_json(text)
        assert difference(mine, theirs) == ""
    """

    facts: Mapping[str, Fact]

    def __post_init__(self) -> None:
        for name, fact in self.facts.items():
            if problem := _problem(name, fact):
                raise UsageError(problem)

    def to_json(self) -> str:
        """Return the facts as one line of ASCII, at most `MAX_BYTES` long; UsageError beyond."""
        text = json.dumps(dict(self.facts), sort_keys=True, separators=(",", ":"), allow_nan=False)
        if len(text) > MAX_BYTES:
            raise UsageError(f"an agreement has {len(text)} bytes; at most {MAX_BYTES} can be sent")
        return text

    @staticmethod
    def from_json(text: str | bytes) -> Agreement:
        """Read what another board sent. Raises DecodeError, and nothing else, for what is not an
        agreement: nothing that a peer writes is trusted."""
        if len(text) > MAX_BYTES:
            raise DecodeError(f"an agreement of {len(text)} bytes; at most {MAX_BYTES} are read")
        try:
            text = text.decode() if isinstance(text, bytes) else text  # JSON is also read as UTF-16
            document = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once)
        except (ValueError, RecursionError):
            raise DecodeError("an agreement that is not JSON") from None
        if not isinstance(document, dict):
            raise DecodeError("an agreement that is not a table of facts")
        facts: dict[str, Fact] = {}
        for name, fact in document.items():
            if name not in _KINDS:
                continue  # a newer version's
            facts[name] = _floats(fact) if _KINDS[name] is list else fact
            if problem := _problem(name, facts[name]):
                raise DecodeError(problem)
        return Agreement(facts)


def difference(mine: Agreement, theirs: Agreement, here: str = "here", there: str = "there") -> str:
    """Return "" when both fit together, else one sentence, without a full stop, that names what
    differs, both values, and the cure.

    `here` says in the sentence where `mine` is, and `there` where `theirs` is: "on board-0".

    Example:
        >>> difference(Agreement({"target": "9 classes"}), Agreement({"target": "8 classes"}))
        'the target is 9 classes here and 8 classes there: set data.classes = 9 on every board'
    """
    for name, _, words, cure in _KNOWN:
        ours, other = mine.facts.get(name), theirs.facts.get(name)
        if ours is None or other is None or _alike(ours, other):
            continue
        if name == "target":
            cure = _target_cure(str(ours), str(other)) or cure
        return f"{words} is {_shown(ours)} {here} and {_shown(other)} {there}: {cure}"
    return ""


def outvoted(said: Mapping[str, Agreement]) -> dict[str, str]:
    """Return who differs from the most of those that state a fact, or, of two parts of one size,
    from that of the first, each with the sentence of `difference`. `said`: by where.

    Example:
        >>> two, one = Agreement({"values": 2}), Agreement({"values": 1})
        >>> list(outvoted({"on a": one, "on b": two, "on c": two}))
        ['on a']
    """
    left, found = dict(said), dict[str, str]()
    for name in _KINDS:
        facts = {where: Agreement({name: of.facts[name]}) for where, of in left.items() if name in of.facts}
        most = max(facts, key=lambda at: sum(not difference(facts[at], of) for of in facts.values()), default="")
        for where, fact in facts.items():
            if differs := difference(fact, facts[most], where, most):
                found[where] = differs
                del left[where]
    return found


def unlike(sizes: Mapping[str, Mapping[str, float]]) -> str:
    """Return "" where boards' inputs are of one size, else a sentence with whose are not. `sizes`:
    by board, of each column as a model gets it; no fact, as boards may differ in it.

    Example:
        >>> unlike({"a": {"column p": 1.0}, "b": {"column p": 1.0}, "c": {"column p": 1000.0}})[:55]
        'column p is about 1000 times as large on c as on others'
    """
    said: list[str] = []
    for column in dict.fromkeys(column for of in sizes.values() for column in of):
        found = sorted((of[column], board) for board, of in sizes.items() if of.get(column, 0.0) > 0.0)
        usual = found[(len(found) - 1) // 2][0] if found else 1.0
        far = [(size / usual, board) for size, board in found if not 1 / _TIMES < size / usual < _TIMES]
        said += [f"{column} is about {times:.4g} times as large on {board} as on others" for times, board in far]
    more = f" (the first of {len(said)} such)" if len(said) > 1 else ""
    return f"{said[0]}{more}: give all boards the same units, or set data.normalise = board" if said else ""


def names_fact(names: Sequence[str]) -> str:
    """Return the fact "labels" of class names in their order: how many, the first few, and a hash
    of all, so that two boards see at which name they part.

    Example:
        >>> names_fact(["ant", "bee"])
        '2: ant, bee (1b151d1e)'
    """
    digest = hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:8]
    first = printable(", ".join(names), 120)
    return f"{len(names)}: {first} ({digest})"


def sums(x: Vec) -> list[float]:
    """Return the fact "start" of a model x, float32[n]: three sums that tell two models apart and
    that differ by less than 1e-3 between devices which draw the same values.

    All terms are positive, so rounding cannot be magnified by cancellation; the third one weighs
    values by their place, so the same values in another order differ."""
    total = np.zeros(3)
    for begin in range(0, len(x), _PART):
        sizes = np.abs(x[begin : begin + _PART], dtype=np.float64)
        place = np.arange(begin, begin + len(sizes)) / max(1, len(x) - 1)
        total += sizes.sum(), sizes @ sizes, sizes @ place
    return total.tolist()


def _problem(name: str, fact: object) -> str:
    """Return why `fact` cannot be the fact `name`; "" when it can."""
    kind = _KINDS.get(name)
    if kind is None:
        return f"an agreement has no fact {printable(str(name), 40)!r}"
    if kind is str:
        # `isprintable` is False for lone surrogates, line breaks and escapes of terminals
        fits = isinstance(fact, str) and len(fact) <= _MAX_TEXT and fact.isprintable()
        allowed = f"printable text of at most {_MAX_TEXT} characters"
    elif kind is int:
        fits = type(fact) is int and 0 <= fact <= _MAX_WHOLE
        allowed = "a whole number from 0 to 2**63 - 1"
    else:
        fits = isinstance(fact, list) and len(fact) <= _MAX_SUMS and all(map(_finite, fact))
        allowed = f"a list of at most {_MAX_SUMS} finite numbers"
    return "" if fits else f"an agreement's fact {name} is not {allowed}"


def _finite(value: object) -> bool:
    return type(value) is float and math.isfinite(value)


def _floats(fact: object) -> list[float]:
    """Return JSON's numbers as floats; what is no list of numbers fails the check that follows."""
    if not isinstance(fact, list) or not all(type(v) in (int, float) for v in fact):
        return [math.nan]
    try:
        return [float(v) for v in fact]
    except OverflowError:
        return [math.nan]


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a table in which no name stands twice: readers would not agree on what it says."""
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name stands twice")
    return table


def _alike(here: Fact, there: Fact) -> bool:
    if isinstance(here, list) and isinstance(there, list):
        pairs = zip(here, there, strict=False)
        close = all(math.isclose(a, b, rel_tol=_RTOL, abs_tol=1e-9) for a, b in pairs)
        return len(here) == len(there) and close
    return here == there


def _shown(fact: Fact) -> str:
    if isinstance(fact, list):
        return "[" + ", ".join(f"{v:.6g}" for v in fact) + "]"
    return printable(str(fact), 160)


def _target_cure(here: str, there: str) -> str:
    """Return the one key that cures two numbers of classes; "" for other targets, which nothing so
    simple cures."""
    mine, other = _CLASSES.match(here), _CLASSES.match(there)
    if not (mine and other and mine[2] == other[2] and mine[1] != other[1]):
        return ""
    return f"set data.classes = {max(int(mine[1]), int(other[1]))} on every board"
