"""The table of a scalability run, as ElastiQuant's Table 3 has it, and what to make of it in a
sentence each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from edgegossip.lab.scale.devices import SHORT_STEP, SHORT_STEP_S
from edgegossip.report.table import aligned
from edgegossip.report.units import UNKNOWN, bytes_text, printable

Row = Mapping[str, Any]

KEYS = (
    "scheme", "devices", "on", "cp_s", "en_s", "tx_s", "de_s", "wait_s", "t_s", "sp_s", "efficiency", "accuracy",
)  # fmt: skip
_HEAD = ("scheme", "boards", "Cp", "En", "Tx", "De", "wait", "T", "Sp", "speed-up", "efficiency", "bits", "sent/round")
_FEW = 3  # rounds
_SPREAD = 0.15
_FREE = 1.05  # of the link's rate
_MORE = 0.5  # of T: that part is what holds a run up
_UNEVEN = 0.2  # of T: boards that wait so much longer than one of them wait for that one
_WORTH = 0.95  # another scheme is named when it needs less of the time than this


def as_text(rows: Sequence[Row], notes: Sequence[str]) -> str:
    return "\n".join([*aligned([_HEAD, *map(_cells, rows)]), "", *notes])


def as_markdown(rows: Sequence[Row], notes: Sequence[str]) -> str:
    cells = [_HEAD, ("---", *["---:"] * (len(_HEAD) - 1)), *map(_cells, rows)]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in cells), "", *(f"- {note}" for note in notes)]) + "\n"


def notes(rows: Sequence[Row], epoch: str) -> list[str]:
    """What the columns are."""
    said = [
        f"seconds of an epoch ({epoch}); T = Cp + En + Tx + De + wait; Sp: T less T on fewer boards, v: faster, ^: slower",
        "speed-up and efficiency: against the smallest count that was run; bits: a value; sent/round: payload, overhead of all",
    ]
    if any(row["on"] == "model" for row in rows):
        said.append(
            "modelled: a virtual clock from rates that were measured or are in device profiles; frames are real"
        )
    if any(row["on"] == "netns" for row in rows):
        said.append(
            "netns: real processes; Cp and En are CPU seconds of each board, Tx, De and wait of the wall on the shaped network"
        )
    if short := [r["step_s"] for r in rows if r.get("step_s") and r["step_s"] < SHORT_STEP_S]:
        said.append(f"boards' steps take {1000 * min(short):.2g} ms by their profile; {SHORT_STEP}")
    if free := _names(rows, lambda r: (r.get("exchange") or {}).get("rate_share", 0) > _FREE):
        said.append(
            "so little is sent at a time that the first packets, which a link of this rate lets through at once, are much of it, "
            f"so Tx is too short: {free}"
        )
    if few := _names(rows, lambda r: r["on"] == "netns" and 0 < r.get("counted_rounds", 9) < _FEW):
        said.append(f"only the last one or two rounds count, in the others time was still dilated more and more: {few}")
    if uneven := _names(rows, lambda r: r["on"] == "netns" and r.get("update_spread", 0) > _SPREAD):
        said.append(f"equal updates took this machine unequally long, so wait is too long: {uneven}")
    if more := [100 * (b["link"] / (b["payload"] + b["overhead"]) - 1) for r in rows if (b := r.get("round_bytes"))]:
        least, most = f"{min(more):.0f}", f"{max(more):.0f}"
        by = least if least == most else f"{least} to {most}"
        said.append(f"on the link are headers of TCP, IP and Ethernet, too: {by} % of what is sent")
    if busy := _names(rows, lambda r: bool(r.get("machine_bound"))):
        said.append(f"in the exchange the processors were busy and the link was not, so Tx is too long: {busy}")
    return said


def _names(rows: Sequence[Row], which: Callable[[Row], bool]) -> str:
    """Of the cells that have a result."""
    return ", ".join(f"{r['scheme']} on {r['devices']}" for r in rows if r.get("t_s", 0) is not None and which(r))


def _cells(row: Row) -> tuple[str, ...]:
    if row["t_s"] is None:
        return (printable(row["scheme"], 60), str(row["devices"]), "failed", *[UNKNOWN] * (len(_HEAD) - 3))
    parts = [_seconds(row[key]) for key in ("cp_s", "en_s", "tx_s", "de_s", "wait_s", "t_s")]
    sp = row.get("sp_s")
    arrow = "" if sp is None else " v" if sp < 0 else " ^"
    return (
        printable(row["scheme"], 60),
        str(row["devices"]),
        *parts,
        UNKNOWN if sp is None else f"{sp:+.2f}{arrow}",
        *(UNKNOWN if row[key] is None else f"{row[key]:.2f}" for key in ("speedup", "efficiency")),
        UNKNOWN if row["bits_per_value"] is None else f"{row['bits_per_value']:.2f}",
        bytes_text(row["round_bytes"]["payload"] + row["round_bytes"]["overhead"]),
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 0.9995 else f"{seconds:.2f}"


def verdicts(rows: Sequence[Row]) -> list[str]:
    """A sentence for each scheme: how far it scales, what holds it up on its most boards, and what
    would be faster there."""
    done = [row for row in rows if row["t_s"] is not None]
    schemes = dict.fromkeys(row["scheme"] for row in done)
    return [_verdict(scheme, done) + _failed([r for r in rows if r["scheme"] == scheme]) for scheme in schemes]


def _verdict(scheme: str, rows: Sequence[Row]) -> str:
    own = sorted((row for row in rows if row["scheme"] == scheme), key=lambda row: int(row["devices"]))
    last = own[-1]
    at = f"at {last['devices']} boards"
    scales = f"{scheme}{_scaling(own)}" if len(own) > 1 else f"{scheme}: {last['t_s']:.2f} s {at}"
    return f"{scales}; {_bound(last)} {at}{_cure(last, rows)}"


def _scaling(own: Sequence[Row]) -> str:
    """Of rows of one scheme, the fewest boards first."""
    best, first, last = min(own, key=lambda row: float(row["t_s"])), own[0], own[-1]
    if best is not last:
        return f" stops scaling at {best['devices']} boards and is {_times(last, best)} slower at {last['devices']}"
    by = f"({_times(first, last)} {first['devices']})"
    for fewer, more in pairwise(own):
        if more["t_s"] >= fewer["t_s"]:
            slower = f"slower at {more['devices']} than at {fewer['devices']}"
            return f" is fastest at {last['devices']} boards {by}, but {slower}"
    return f" gets faster all the way to {last['devices']} boards {by}"


def _failed(own: Sequence[Row]) -> str:
    counts = [str(row["devices"]) for row in own if row["t_s"] is None]
    return f"; failed at {', '.join(counts)}" if counts else ""


def _bound(row: Row) -> str:
    """What the board is busy with that the others wait for."""
    last = row.get("slowest") or row
    seconds = {
        "link": last["tx_s"] + last["wait_s"],
        "compute": last["cp_s"],
        "codec": last["en_s"] + last["de_s"],
    }
    whole = sum(seconds.values())  # the board's own: of a few rounds it is not quite the mean of all boards
    shares = {name: part / whole for name, part in seconds.items()}
    most = max(shares, key=lambda name: shares[name])
    word = f"{most}-bound" if shares[most] >= _MORE else f"mostly {most}-bound"
    uneven = "node" in last and row["wait_s"] - last["wait_s"] > _UNEVEN * row["t_s"]
    waited = f" on {printable(last['node'], 40)}, for which the others wait," if uneven else ""
    doubt = ", as far as this machine could play it" if row.get("machine_bound") else ""
    return f"{word} ({100 * shares[most]:.0f} % of T{doubt}){waited}"


def _cure(row: Row, rows: Sequence[Row]) -> str:
    """The scheme that would be the fastest on as many boards, computing as this one does: what is
    computed is the same in all schemes, and where it took longer in one cell the machine was
    busy."""
    others = [r for r in rows if r["devices"] == row["devices"] and r["scheme"] != row["scheme"]]
    seconds = {r["scheme"]: row["cp_s"] + r["t_s"] - r["cp_s"] for r in others}
    better = min(seconds, key=lambda scheme: float(seconds[scheme]), default=None)
    if better is None or seconds[better] >= _WORTH * row["t_s"]:
        return ""
    return f": {better} would give {row['t_s'] / seconds[better]:.2f} times the speed"


def _times(row: Row, other: Row) -> str:
    return f"{row['t_s'] / other['t_s']:.2f} times"
