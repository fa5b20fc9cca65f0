"""ElastiQuant (Sudharsan et al., SAC 2022): its tables and figures, for lab/papers/README.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from edgegossip.codecs.levels import variance_bound
from lab.papers import table3 as table3
from lab.papers.claims import (
    COMPUTED,
    NO_DATA,
    TOO_LONG,
    Find,
    Finding,
    Interval,
    Kept,
    Row,
    Run,
    Sample,
    Verdict,
    beside_by_seed,
    if_holds,
    interval,
    judge,
    losses,
)

_SCALE = Run(
    "scale-paper",
    "python -m lab.papers.table3 --data DIR",
    "modelled, 5 numbers a network fitted to the table, all of SGD among them; 2 to 7 Xaviers",
)

_TRAINED = ("fp32", "4-bit-elastiquant", "qsgd", "qsgd-v", "8-bit-elastiquant")
_WAYS = Run(
    "papers/elastiquant",
    f"python -m lab.papers.elastiquant {' '.join(_TRAINED)} --data DIR",
    "ResNet-20, six boards, 100 iterations, one seed; 18 boards, length not in the paper",
    _TRAINED,
)
_SAME = _WAYS._replace(
    size="ResNet-20, six boards, 100 iterations, one seed; ResNet-110, up to six boards, length not in the paper",
    parts=("fp32",),
)
# What a run's mean may be off: that of fp32 was 0.901 with AVX2 and 0.913 with AVX-512.
_ANOTHER_WAY = 0.02
_BOUNDS = Run("papers/elastiquant", "python -m lab.papers.elastiquant bounds", "exact; the same", ("bounds",))

_BOARDS = Run(
    "papers/elastiquant-18",
    "edgegossip study elastiquant --sweep-file lab/results/pages/papers/elastiquant-18.toml --set data.dir=DIR",
    "CNN, 18 boards, 200 iterations; ResNet, until convergence",
)

_SMALL = Run(
    "papers/table4-cnn",
    "edgegossip study elastiquant --sweep-file lab/results/pages/papers/table4-cnn.toml --set data.dir=DIR",
    "CNN, CIFAR-10, two boards, 15 epochs, three seeds; length not in the paper",
)

_FAR_APART = "Seeds differ far more than schemes in so short a run"

DROP = 70  # the iteration from which on the learning rate is a tenth


def _lines(kept: Kept, network: str) -> list[table3.Line]:
    return table3.kept_lines(kept("scale-paper"), network)


def _predicted(network: str, what: str, source: str) -> Find:
    def find(kept: Kept) -> Finding:
        off = table3.errors(_lines(kept, network))[f"predicted, {what}"]
        text = f"predicted from {source}, {{:.1%}} off in the mean, {{:.1%}} at most"
        return Finding(if_holds(statistics.fmean(off) < 0.1), text, (statistics.fmean(off), max(off)))

    return find


def _speedup(network: str, stalled: bool) -> Find:
    """The sign of Sp: of 8-bit-ElastiQuant from 4 to 7 boards, or of all other steps."""

    def find(kept: Kept) -> Finding:
        lines = _lines(kept, network)
        steps = [
            (line, ours)
            for line, ours in table3.speedups(lines)
            if line.scheme != "SGD"
            and stalled == (line.scheme.startswith("8-bit") and line.devices == table3.COUNTS[-1])
        ]
        same = sum((ours < 0) == (line.paper.sp < 0) for line, ours in steps)
        if not stalled:
            return Finding(if_holds(same == len(steps)), "the sign of {} of {} steps", (same, len(steps)))
        [(line, ours)], off = steps, _off(lines)
        known = abs(ours) > off * line.t
        text = "{:+.2f} of {:.1f} minutes, where T is {:.1%} off in the mean"
        return Finding(if_holds(same == 1) if known else "cannot be told", text, (ours, line.t, off))

    return find


def _off(lines: Sequence[table3.Line]) -> float:
    """How far T of the model is from the paper's in the mean, as a share."""
    return statistics.fmean(table3.errors(lines)["of both, T"])


def _order(network: str) -> Find:
    """The schemes' order; not told where two lie closer together than the model is exact."""

    def find(kept: Kept) -> Finding:
        lines = _lines(kept, network)
        last = sorted((line for line in lines if line.devices == table3.COUNTS[-1]), key=lambda line: -line.t)
        apart, off = min(slow.t / fast.t - 1 for slow, fast in pairwise(last)), _off(lines)
        same = last == sorted(last, key=lambda line: -line.paper.t)
        text = "{}; two of them {:.1%} apart, where T is {:.1%} off in the mean"
        figures = (", ".join(line.scheme for line in last), apart, off)
        return Finding(if_holds(same) if apart > off else "cannot be told", text, figures)

    return find


def _steps(kept: Kept, part: str, scheme: str) -> list[dict[str, Any]]:
    """What was measured, without the first step, from which on all have the same model."""
    return [row for row in kept.rows("papers/elastiquant", part=part, scheme=scheme) if row["step"] > 1]


def _variance(rows: Iterable[Mapping[str, Any]]) -> list[float]:
    return [row["sampling"] + row["quantisation"] for row in rows]


def _throughout(ours: Sequence[float], theirs: Sequence[float]) -> tuple[Verdict, int, int]:
    """Whether ours is the smaller in all of the steps, or not even in half of them. One step tells
    little."""
    less = sum(a < b for a, b in zip(ours, theirs, strict=True))
    told = less == len(ours) or 2 * less < len(ours)
    return if_holds(less == len(ours)) if told else "cannot be told", less, len(ours)


def _way(scheme: str) -> Find:
    """A scheme on its own way beside FP-SGD on its own."""

    def find(kept: Kept) -> Finding:
        a, b = (_variance(_steps(kept, name, name)) for name in (scheme, "fp32"))
        verdict, less, count = _throughout(a, b)
        text = "{:.3f} in the mean, fp32 {:.3f}; the smaller in {} of {} measured steps"
        return Finding(verdict, text, (statistics.fmean(a), statistics.fmean(b), less, count))

    return find


def _smallest(kept: Kept) -> Finding:
    names = ("fp32", "qsgd-v", "4-bit-elastiquant", "8-bit-elastiquant", "qsgd")
    found = {name: statistics.fmean(_variance(_steps(kept, name, name))) for name in names}
    text = "means: " + "; ".join(f"{name} {{:.3f}}" for name in names)
    above = min(found[name] for name in names[1:]) - found["fp32"]
    verdict = (
        judge(Interval(above, _ANOTHER_WAY), 0.0) if max(found, key=found.__getitem__) == "qsgd" else if_holds(False)
    )
    return Finding(verdict, text, tuple(found.values()))


def _falls(kept: Kept) -> Finding:
    rows = _steps(kept, "4-bit-elastiquant", "4-bit-elastiquant")
    halves = [[row for row in rows if (row["step"] > DROP) == late] for late in (False, True)]
    before, after = (statistics.fmean(_variance(half)) for half in halves)
    return Finding("cannot be told", "{:.3f} before the drop of the rate, {:.3f} after", (before, after))


def _rounding(kept: Kept, scheme: str) -> list[float]:
    return [row["quantisation"] for row in _steps(kept, "fp32", scheme)]


def _less(other: str) -> Find:
    def find(kept: Kept) -> Finding:
        names = ("4-bit-elastiquant", other)
        a, b = (_rounding(kept, name) for name in names)
        verdict, less, count = _throughout(a, b)
        bits = [statistics.fmean(row["bits"] for row in _steps(kept, "fp32", name)) for name in names]
        text = (
            "quantisation alone {:.4f} in {:.2f} bits a value on the wire, {} {:.4f} in {:.2f}; "
            "the smaller in {} of {} measured steps"
        )
        return Finding(verdict, text, (statistics.fmean(a), bits[0], other, statistics.fmean(b), bits[1], less, count))

    return find


def _same_values(kept: Kept) -> Finding:
    rows = {
        name: kept.rows("papers/elastiquant", part="fp32", scheme=name)
        for name in ("4-bit-elastiquant", "e-elastiquant")
    }
    plain, coded = (statistics.fmean(row["bits"] for row in of) for of in rows.values())
    same = _rounding(kept, "4-bit-elastiquant") == _rounding(kept, "e-elastiquant")
    return Finding(if_holds(same and coded < plain), "the same values in {:.2f} bits instead of {:.2f}", (coded, plain))


def _equation_2(kept: Kept) -> Finding:
    limits = {"4-bit-elastiquant": variance_bound(6, 512), "8-bit-elastiquant": variance_bound(126, 512, 0.9)}
    worst = {
        name: max(row["quantisation"] for row in kept.rows("papers/elastiquant", part="fp32", scheme=name)) / limit
        for name, limit in limits.items()
    }
    text = "measured at most {:.2f} of the bound with 4 bits, {:.2f} with 8"
    return Finding(if_holds(max(worst.values()) <= 1), text, tuple(worst.values()))


def _equation_3(kept: Kept) -> Finding:
    rows = kept.rows("papers/computed", part="lengths")
    worst = max(row["bits"] / row["bound"] for row in rows)
    return Finding(if_holds(worst <= 1), "real Elias streams at most {:.2f} of the bound, {} cases", (worst, len(rows)))


def _converges(section: str) -> Find:
    def find(kept: Kept) -> Finding:
        rows = kept.rows("papers/computed", part="convergence", section=section)
        ways = [[row for row in rows if row["nesterov"] == nesterov] for nesterov in (False, True)]
        means = [interval(Sample.of([row["found"] / row["bound"] for row in way])) for way in ways]
        text = "{:.4f} ± {:.4f} of the bound with heavy ball, {:.4f} ± {:.4f} with Nesterov, {} seeds"
        figures = (means[0].mean, means[0].reach, means[1].mean, means[1].reach, len(ways[0]))
        return Finding(if_holds(max(one.high for one in means) <= 1), text, figures)

    return find


def _worst(setup: str, key: str, rising: bool) -> Find:
    """The best p, or the worst case there, by s or by d."""

    def find(kept: Kept) -> Finding:
        rows = kept.rows("papers/elastiquant", part="bounds", setup=setup)
        axis = sorted({row[setup] for row in rows})
        best = [min((row for row in rows if row[setup] == at), key=lambda row: row["worst"])[key] for at in axis]
        steps = [b - a for a, b in pairwise(best)]
        holds = all(step >= 0 for step in steps) if rising else all(step <= 0 for step in steps)
        text = f"from {{:.2f}} at {setup} = {{:,}} to {{:.2f}} at {setup} = {{:,}}"
        return Finding(if_holds(holds and any(steps)), text, (best[0], axis[0], best[-1], axis[-1]))

    return find


_LEARNT = 0.2  # of ten classes, twice what guessing gives


def _diverges(kept: Kept) -> Finding:
    """A run that does not learn tells of TernGrad where full precision learns in its settings; one
    that learns tells nothing, as it may diverge later."""
    [ours], [exact] = (kept.rows("papers/table4-terngrad", case=case) for case in ("terngrad", "fp-sgd"))
    lost = ours["state"] == "failed" or ours["accuracy"] < _LEARNT
    verdict = "agrees" if lost and exact["accuracy"] > _LEARNT else "cannot be told"
    text = "{:.2f} against {:.2f} % in full precision, one seed"
    return Finding(verdict, text, (100 * (ours["accuracy"] or 0.0), 100 * exact["accuracy"]))


ROWS = (
    Row("Table 1", "which papers prove and measure what"),
    Row("Table 2", "what the symbols are called"),
    Row("Table 3, Cp, SGD's Tx, 4-bit-ElastiQuant's En", "minutes an epoch: fitted here, so nothing is predicted"),
    *(
        row
        for network in table3.MODELS
        for row in (
            Row(
                f"Table 3, {network}, Tx",
                "minutes an epoch of the quantised schemes; read as within 10 % in the mean",
                _predicted(network, "Tx of the quantised schemes", "real frames"),
                _SCALE,
            ),
            Row(
                f"Table 3, {network}, En",
                "minutes an epoch of 8-bit- and E-ElastiQuant; read as within 10 % in the mean",
                _predicted(network, "En of the other two schemes", "4-bit's and a profile's rates"),
                _SCALE,
                why="The profile has the rates of this package's coders, the paper used its own in TensorFlow",
            ),
            Row(
                f"Table 3, {network}, Sp",
                "the sign of the quantised schemes' steps but 8-bit-ElastiQuant's from 4 to 7 boards",
                _speedup(network, stalled=False),
                _SCALE,
            ),
            Row(
                f"Table 3, {network}, Sp",
                "8-bit-ElastiQuant from 4 to 7 boards: "
                f"{table3.PAPER[network]['8-bit-ElastiQuant'][2].sp:+.2f} minutes; read as the sign",
                _speedup(network, stalled=True),
                _SCALE,
                why="The paper calls the step a stall for both networks, and prints two signs",
            ),
            Row(
                f"Table 3, {network}, T on 7 boards",
                "slowest first: SGD, 8-bit, 4-bit, E-ElastiQuant",
                _order(network),
                _SCALE,
            ),
        )
    ),
    Row("Table 4, ResNet-20, CIFAR-10", "Atomo 87.6, FP-SGD 90.5, 4-bit-ElastiQuant 86.3 %", why=TOO_LONG),
    Row(
        "Table 4, ResNet-20, CIFAR-10",
        "TernGrad with default settings: no convergence; read as runs that stay near guessing or diverge",
        _diverges,
        Run(
            "papers/table4-terngrad",
            "edgegossip study elastiquant --sweep-file lab/results/pages/papers/table4-terngrad.toml --seeds 1 "
            "--set data.dir=DIR",
            "ResNet-20, two boards, 4 epochs, one seed; length not in the paper",
        ),
        why="In so short a run it learns. Three runs of ten times the length, whose data are those of commit e30b42f1, ended in "
        "values that are not finite, without full precision beside them. The learning rate is ours",
    ),
    Row("Table 4, ResNet-18, CIFAR-10", "DGC 87.36 to 91.25, FP-SGD 92.72, 4-bit-ElastiQuant 91.96 %", why=TOO_LONG),
    Row("Table 4, ResNet-18, CIFAR-100", "DGC 72.69 and 74.41, FP-SGD 74.33, 4-bit-ElastiQuant 73.63 %", why=TOO_LONG),
    Row(
        "Table 4, ResNet-110, CIFAR-10",
        "SGD 89.76, QSGD 89.22, QSGD-V 90.10, FP-SGD 92.03, TernGrad 91.33, 4-bit-ElastiQuant 90.80 %",
        why=TOO_LONG,
    ),
    Row(
        "Table 4, its claim on another model",
        "TernGrad comes near FP-SGD (ResNet-110: 0.70 behind): read as at most a point",
        beside_by_seed(_SMALL.data, "terngrad", "fp-sgd", -1.0),
        _SMALL,
    ),
    Row(
        "Table 4, its claim on another model",
        "4-bit-ElastiQuant is behind FP-SGD: by 4.2 points (ResNet-20), 0.76 (ResNet-18), 1.23 (ResNet-110)",
        beside_by_seed(_SMALL.data, "4-bit-elastiquant", "fp-sgd", most=0.0),
        _SMALL,
    ),
    Row("Figure 1 a, c, f", "loss, accuracy and variance on ImageNet", why=NO_DATA),
    Row(
        "Figure 1 b",
        "CIFAR-10, 18 boards: ElastiQuant's training loss is below QSGD's",
        losses(_BOARDS.data, "4-bit-elastiquant", "qsgd"),
        _BOARDS,
        why=_FAR_APART,
    ),
    Row("Figure 1 b", "so is QSGD-V's", losses(_BOARDS.data, "qsgd-v", "qsgd"), _BOARDS, why=_FAR_APART),
    Row(
        "Figure 1 d",
        "CIFAR-10, 18 boards: ElastiQuant's accuracy is above QSGD's",
        beside_by_seed(_BOARDS.data, "4-bit-elastiquant", "qsgd", 0.0),
        _BOARDS,
        why=_FAR_APART,
    ),
    Row("Figure 1 d", "so is QSGD-V's", beside_by_seed(_BOARDS.data, "qsgd-v", "qsgd", 0.0), _BOARDS, why=_FAR_APART),
    Row(
        "Figure 1 d",
        "QSGD does not reach FP-SGD: read as at least half a point behind",
        beside_by_seed(_BOARDS.data, "qsgd", "fp-sgd", most=-0.5),
        _BOARDS,
        why=_FAR_APART,
    ),
    Row(
        "Figure 1 d",
        "ElastiQuant reaches FP-SGD: read as at most a point behind",
        beside_by_seed(_BOARDS.data, "4-bit-elastiquant", "fp-sgd", -1.0),
        _BOARDS,
        why=_FAR_APART,
    ),
    Row(
        "Figure 1 e",
        "FP-SGD varies least; read as QSGD most, as the text puts the others below it",
        _smallest,
        _WAYS,
        why="QSGD does; of the others 8 bits are no further from fp32 than the same run on two machines, whose float32 rounds "
        "differently",
    ),
    Row(
        "Figure 1 e",
        "ElastiQuant varies less than SGD throughout; read as FP-SGD, which its next sentence names",
        _way("4-bit-elastiquant"),
        _WAYS,
        why="The paper plots SGD beside FP-SGD and does not say how they differ. Rounding comes on top of what a "
        "batch varies, on the same gradient",
    ),
    Row("Figure 1 e", "QSGD-V varies less than SGD throughout; read as above", _way("qsgd-v"), _WAYS, why="As above"),
    Row(
        "Figure 1 e",
        "the variance falls where the learning rate drops",
        _falls,
        _WAYS,
        why="One seed, and no run without the drop beside it. The paper does not define its normalised variance; here the "
        "norm of a board's gradient is what divides",
    ),
    Row("Figure 2 a", "ResNet-50 on ImageNet: accuracy against time", why=NO_DATA),
    Row("Figure 2 b, c", "ResNet-110: loss and accuracy beside DGC of 12 %", why=TOO_LONG),
    Row("Figure 2 d", "4-bit-ElastiQuant varies less than TernGrad", _less("terngrad"), _SAME),
    Row("Figure 2 d", "and less than the others: read as QSGD", _less("qsgd"), _SAME),
    Row(
        "Figure 2 d",
        "the same, read as QSGD-V",
        _less("qsgd-v"),
        _SAME,
        why="Levels are made for the L2 norm of a bucket; QSGD-V divides by its largest value",
    ),
    Row(
        "Section 4.3",
        "E-ElastiQuant adds Huffman codes: read as the values of 4-bit-ElastiQuant in fewer bits",
        _same_values,
        _SAME._replace(size="gradients of ResNet-20, 100 iterations, one seed; two to seven boards"),
    ),
    Row(
        "Equation 2",
        "bounds the variance of quantisation; of 8 bits, whose p is 0.9, section 3.6's bound",
        _equation_2,
        _SAME._replace(size="gradients of ResNet-20 in buckets of 512, 100 iterations, one seed; any vector"),
        why="Not of any vector: for buckets of 2 * 4^s to 9/4 * 4^s values the printed one is too small, and "
        "[another](differences.md#what-theory-promises-of-codecs) stands for it here. These buckets are smaller",
    ),
    Row(
        "Equation 3",
        "bounds the length of a bucket's code",
        _equation_3,
        COMPUTED._replace(size="buckets of 65,536 values, three laws; any"),
        why="With [constants of this package](differences.md#what-theory-promises-of-codecs) in place of the paper's 1 + o(1), "
        "which no measurement can test",
    ),
    Row(
        "Section 3.4.1",
        "bounds how far the loss of the mean iterate is above the least, convex",
        _converges("3.4.1"),
        COMPUTED._replace(size="32 values, four boards, 200 steps; any"),
    ),
    Row(
        "Section 3.4.2",
        "bounds the smallest squared slope, not convex",
        _converges("3.4.2"),
        COMPUTED._replace(size="32 values, four boards, 200 steps; any"),
    ),
    Row("Section 3.6.2, d fixed", "the worst case falls with s", _worst("s", "worst", rising=False), _BOUNDS),
    Row(
        "Section 3.6.2, d fixed",
        "the best p moves left as s grows",
        _worst("s", "p", rising=False),
        _BOUNDS,
        why="The paper's own displayed sum moves as ours does",
    ),
    Row("Section 3.6.2, s fixed", "the worst case rises with d", _worst("d", "worst", rising=True), _BOUNDS),
    Row(
        "Section 3.6.2, s fixed",
        "the best p moves right as d grows",
        _worst("d", "p", rising=True),
        _BOUNDS,
        why="As above",
    ),
)
