"""The tables at the end of a run: what every board reached and sent, and where its time went. Plain
text, no colours."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from edgegossip.report.units import bytes_text, number_text, padded, seconds_text, width
from edgegossip.telemetry.records import PARTS, score_text
from edgegossip.telemetry.summary import SENT, beside, evaluated_by
from edgegossip.untrusted import printable

_RUIN = {  # verdict.py's word -> how the run ended
    "diverged": "diverged",
    "chance": "learnt nothing",
    "apart": "boards differ",
    "split": "the fleet split",
    "isolated": "nothing was exchanged",
}
MOST_SCORES = 4  # columns of the table
_TIME = ("board", *PARTS, "sum")
_SHOWN = tuple(part for part in SENT if part != "overhead")  # which is little, and socket has it
_COLUMNS = 80  # of a terminal


def run_table(summary: Mapping[str, Any]) -> str:
    """Return the tables for a document of `summary.summarise`: scores, test loss, bytes sent
    (payload, what the sockets saw, what that is on the link), bytes received and bits per value;
    seconds by part; below them all boards together, unless there is only one. Unknown values are
    "-"."""
    rows = summary["boards"]
    scores = [name for name in summary["scores"] if name != "loss"][:MOST_SCORES]  # which has a column anyway
    reached = [_reached(_name(row), {name: row["scores"].get(name) for name in scores}, row) for row in rows]
    times = [_times(_name(row), row) for row in rows]
    whole = len(rows) != 1  # whether a row for all boards would say more than theirs
    if whole:
        reached.append(_reached("all", {name: summary["scores"][name]["mean"] for name in scores}, summary))
        times.append(_times("mean", summary))
    head = ("board", *(printable(name, 32) for name in scores), "test loss", *_SHOWN, "received", "bits/value")
    return "\n".join(
        [
            _title(summary),
            "",
            *_aligned(head, reached, {"payload": "sent"}, whole),
            "",
            *_aligned(_TIME, times, {"compute": "round time"}, whole),
            "",
            *_beside(summary),
            *(line for note in [*_notes(summary), *verdict_lines(summary)] for line in _wrapped(note)),
        ]
    )


def _beside(summary: Mapping[str, Any]) -> list[str]:
    """What training together gave each board, beside what it reached by itself."""
    score, rows = str(summary["score"]), beside(summary)
    if not rows:
        return []
    heads = ["board", "alone", "together", "average of models"]
    cells = [[printable(name, 64), *(score_text(score, value) for value in reached)] for name, *reached in rows]
    both = [row for row in rows if None not in row[1:3]]
    means = [_mean([row[1] for row in both]), _mean([row[2] for row in both]), _mean([row[3] for row in both])]
    cells.append(["all", *(score_text(score, mean) for mean in means)])
    count = 3 if means[2] is None else 4
    group = {"alone": "test loss" if score == "loss" else printable(score, 32)}
    return [*_aligned(heads[:count], [row[:count] for row in cells], group, True), ""]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def runs_table(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a list of runs, one each, for the documents of `summary.summarise`."""
    rows = [("run", "boards", "rounds", "score", "sent", "how it ended")]
    for summary in summaries:
        asked, score = summary.get("rounds_asked"), summary.get("score")
        reached = summary["scores"][score]["mean"] if score else None
        sent = summary["sent_bytes"]["payload"]
        rows.append(
            (
                printable(str(summary["run"])),
                str(summary["nodes"]),
                f"{summary['rounds']}/{asked}" if asked else str(summary["rounds"]),
                "-" if reached is None else score_text(str(score), reached),
                "-" if sent is None else bytes_text(sent),
                _end(summary),
            )
        )
    return in_columns(rows)


def _end(summary: Mapping[str, Any]) -> str:
    """How a run ended, in a few words."""
    if ruin := [finding["kind"] for finding in summary["verdict"] if finding["ruin"]]:
        return _RUIN.get(ruin[0], str(ruin[0]))
    lost = len(summary["failed_nodes"])
    if (unfinished := len(summary.get("unfinished_nodes") or ())) > lost:
        whole = unfinished == summary["nodes"]
        return "not finished" if whole else f"{unfinished} board{'' if unfinished == 1 else 's'} not finished"
    return f"{lost} board{' was' if lost == 1 else 's were'} lost" if lost else "finished"


def _wrapped(note: str) -> list[str]:
    return textwrap.wrap(note, _COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def verdict_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return what is not as it should be, a line each: "RUIN" or "look" (a hint), what is so, the
    cure."""
    return [
        f"{'RUIN' if f['ruin'] else 'look'}: {printable(f['text'], 500)}: {printable(f['cure'], 500)}"
        for f in summary["verdict"]
    ]


def _notes(summary: Mapping[str, Any]) -> list[str]:
    notes = [
        "payload: what the models took; socket: all TCP bytes as the kernel counted them, those of questions, "
        "acknowledgements and keep-alives included; link: with the headers of TCP, IP and Ethernet",
        "round time: seconds in a board's own rounds; wall: from the first board's start to the last one's end",
    ]
    if any(row["role"] == "coordinator" for row in summary["boards"]):
        notes.append(
            "coordinator: sent is models and frame heads; socket is what boards' connections carried, without its own"
        )
    if len(summary["boards"]) != 1:
        notes.append(f"all: {_whose(summary)}bytes are sums over all boards")
    if rows := beside(summary):
        note = "alone: each board by itself, with the same rounds, seed and data, and no exchange"
        tested = "; average of models: the mean of the boards' models, on each board's test data"
        note += tested if any(row[3] is not None for row in rows) else ""
        if evaluated_by(summary) == "coordinator":  # whose own mean goes by examples
            note += "; all boards count the same there"
        notes.append(note)
    if summary["failed_nodes"]:
        notes += [f"lost: {_name_and_why(row, summary)}" for row in summary["boards"] if row["state"] == "lost"]
        notes.append("figures of a lost board are up to that moment")
    if summary.get("restarted_nodes"):
        again = [row for row in summary["boards"] if row["restarts"]]
        names = ", ".join(f"{row['node']} ({row['restarts']}x:{_when(row, summary, again=True)})" for row in again)
        notes.append(f"started again: {printable(names)}; figures are of all its processes together")
    for one in summary.get("resumes") or ():
        notes.append(f"resumed{_moment(one)}; figures are of the whole run")
    if summary.get("ended_early"):
        notes.append(printable(summary["ended_early"]))
    if summary.get("unfinished_nodes"):
        notes.append(f"not finished: {printable(', '.join(summary['unfinished_nodes']))}")
    return notes


def _whose(summary: Mapping[str, Any]) -> str:
    """Whose evaluations stand in the last row: none where all boards were lost."""
    scores = summary["score"] not in (None, "loss")
    what = "scores and test loss are" if scores else "the test loss is"
    if evaluated_by(summary) == "coordinator":
        return f"{what} of the coordinator's model, "
    if len(summary["failed_nodes"]) == summary["nodes"]:
        return ""
    means = "means" if scores else "a mean"
    finished = any(row["state"] == "finished" for row in summary["boards"])
    return f"{what} {means} over the boards that {'finished' if finished else 'are left'}, "


def _title(summary: Mapping[str, Any]) -> str:
    asked = summary.get("rounds_asked")
    rounds = (
        f"{summary['rounds']} rounds"
        if asked in (None, summary["rounds"])
        else f"{summary['rounds']} of {asked} rounds"
    )
    boards = f"{summary['nodes']} board{'' if summary['nodes'] == 1 else 's'}"
    parts = [summary["run"], summary["mode"], boards, rounds]
    parts += [f"{seconds_text(summary['seconds'])} wall"]
    if any(finding["ruin"] for finding in summary["verdict"]):
        parts.append(_end(summary))
    return " | ".join(printable(str(part)) for part in parts if part)


def _name_and_why(row: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    return printable(row["node"]) + _when(row, summary) + (f": {printable(row['why'], 300)}" if row["why"] else "")


def _when(row: Mapping[str, Any], summary: Mapping[str, Any], again: bool = False) -> str:
    """When a board's processes ended too early, of which it was started again or not."""
    found = [
        _moment(one)
        for one in summary["interruptions"]
        if one["node"] == row["node"] and (one["event"] == "restarted") == again
    ]
    return ",".join(found)


def _moment(one: Mapping[str, Any]) -> str:
    return f" after {one['rounds']} round{'' if one['rounds'] == 1 else 's'}, at {seconds_text(one['t_s'])} wall"


def _name(row: Mapping[str, Any]) -> str:
    return printable(row["node"], 64) + (
        "" if row["state"] == "finished" or row["role"] != "board" else f" ({row['state']})"
    )


def _reached(name: str, scores: Mapping[str, float | None], row: Mapping[str, Any]) -> tuple[str, ...]:
    sent = (bytes_text(row["sent_bytes"][part]) for part in _SHOWN)
    received, bits = bytes_text(row["received_bytes"]), number_text(row["bits_per_value"], 2)
    figures = (score_text(score, value) for score, value in scores.items())
    return (name, *figures, number_text(row["loss"], 4), *sent, received, bits)


def _times(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = [row["time_s"][part] for part in PARTS]
    known = [s for s in seconds if s is not None]
    return (name, *map(seconds_text, seconds), seconds_text(sum(known) if known else None))


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]], groups: Mapping[str, str], whole: bool) -> list[str]:
    """Names to the left, numbers to the right, a rule under the head, and one above the last row if
    that is the `whole`. `groups` puts a word over the first column of a group."""
    lines = aligned([[groups.get(name, "") for name in header], header, *rows], heads=2)
    if whole:
        lines.insert(-1, lines[2])
    return lines


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines with columns aligned to the left."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(padded, row, widths)).rstrip() for row in rows]


def aligned(rows: Sequence[Sequence[str]], heads: int = 1) -> list[str]:
    """Return the lines with aligned columns: the first one to the left, numbers to the right; a
    rule under the first `heads` of them."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        numbers = (padded(cell, columns, right=True) for cell, columns in zip(cells[1:], widths[1:], strict=True))
        return "  ".join([padded(cells[0], widths[0]), *numbers]).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [line(row) for row in rows]
    return [*lines[:heads], rule, *lines[heads:]]
