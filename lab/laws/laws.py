"""What cannot be otherwise in a run folder: its seconds add up, its clocks go forward, its bytes
are counted once, its summary is that of its records. Pure arithmetic on what docs/run-folder.md
says of the folder's files.

A law is a function: of one record, or of the whole run. It gives a sentence for each place where it
is broken, and none where what it needs was not measured, was lost in a crash, or is in another
board's folder. So a run that was killed, resumed or never finished breaks none of them; a folder
whose figures contradict each other does, be it by a mistake of the framework, by hand, or by a
clock that is no clock.

A *stretch* is what a process of a node recorded between one `started` and the next: rounds, clocks
and counters go on within it, and begin anew after it.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from edgegossip.telemetry.records import (
    LINK_BYTES,
    LINK_PREFIX,
    PARTS,
    SPANS,
    STAGES,
    MetricsRecord,
)
from edgegossip.telemetry.run_folder import RunData
from edgegossip.telemetry.summary import COORDINATOR, summarise
from edgegossip.types import NodeId
from lab.laws.history import Node, Row, Run, read

EXACT, CLOSE = 1e-9, 1e-6  # relative: what a sum of floats is off by, what was written with fewer digits
MICROSECONDS = 1e-5  # what parts cut to whole microseconds are off by, together
JITTER_S = 0.25  # between the end of a round and the time of its record, on a busy machine
LAST_LOOK = 0.02  # of all bytes: what the last look at the sockets came too early or too late for
UNDER_WAY = 4  # messages to one neighbour that may be on their way when it looks at its sockets last
AFTERWARDS = frozenset({"compared", "averaged"})  # a look at the models, when all boards' processes have ended
_SIGNED = frozenset({"train/loss", "eval/loss", "sys/temperature_c"})
_SHARES = {
    "eval/accuracy": 1.0,
    "train/share": 1.0,
    "sys/throttled": 1.0,
    "sys/on_battery": 1.0,
    "sys/machine_percent": 100.0,
    "sys/battery_percent": 100.0,
}
_MEASURES = ("time/", "cpu/", "net/", "link/", "rate/", "codec/", "gossip/", "sys/")
_SPAN = re.compile(r"([cetdwoCO])([0-9]+)")


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Is one place where a law is broken."""

    law: str  # its name, for programs
    text: str  # what contradicts what: a sentence without its full stop


Broken: TypeAlias = Iterable[str]
RecordLaw: TypeAlias = Callable[[Run, MetricsRecord], Broken]
Law: TypeAlias = Callable[[Run], Broken]


def verify(data: RunData) -> list[Contradiction]:
    """Hold a run folder against all laws; nothing is returned where nothing contradicts.
    What it keeps of each record is small."""
    found: dict[str, list[str]] = {name: [] for name in law_names()}

    def look(run: Run, record: MetricsRecord) -> None:
        for law in RECORD_LAWS:
            found[_name(law)] += law(run, record)

    run = read(data, look)
    for law in LAWS:
        found[_name(law)] += law(run)
    return [Contradiction(name, text) for name, texts in found.items() for text in texts]


def law_names() -> list[str]:
    """Return the names of all laws."""
    return [_name(law) for law in (*RECORD_LAWS, *LAWS)]


def _name(law: Any) -> str:
    return str(law.__name__).replace("_", "-")


# -- of one record


def _of(record: MetricsRecord) -> str:
    return f"round {record.step} of {record.node}"


def nothing_is_negative(run: Run, record: MetricsRecord) -> Broken:
    """Seconds, bytes, joules, examples and rates are at least 0."""
    for name in record.values:
        counted = name.startswith(_MEASURES) or name in ("train/lr", "train/examples", "eval/examples")
        if counted and name not in _SIGNED and (value := record.number(name)) is not None and value < 0:
            yield f"{_of(record)} has {name} = {value:g}, below 0"


def shares_are_shares(run: Run, record: MetricsRecord) -> Broken:
    """Accuracy and the share of work lie in 0..1, load and charge in 0..100; throttled is 0 or
    1."""
    for name, most in _SHARES.items():
        if (value := record.number(name)) is not None and not 0.0 <= value <= most * (1 + CLOSE):
            yield f"{_of(record)} has {name} = {value:g}, which is not in 0..{most:g}"


def parts_make_the_round(run: Run, record: MetricsRecord) -> Broken:
    """The six parts of a round add up to it."""
    yield from _adds_up(record, "time", "time/round_s", MICROSECONDS)


def cpu_parts_make_the_cpu_time(run: Run, record: MetricsRecord) -> Broken:
    """CPU seconds by part add up to those of the round."""
    yield from _adds_up(record, "cpu", "time/cpu_s", MICROSECONDS)


def _adds_up(record: MetricsRecord, clock: str, whole: str, slack: float) -> Broken:
    parts, total = [record.number(f"{clock}/{part}_s") for part in PARTS], record.number(whole)
    known = [part for part in parts if part is not None]
    if total is not None and len(known) == len(PARTS) and abs(sum(known) - total) > slack + CLOSE * total:
        yield f"{_of(record)} has {clock}/ parts of {sum(known):.6f} s, and {whole} = {total:.6f}"


def stages_are_of_the_computing(run: Run, record: MetricsRecord) -> Broken:
    """Forward, backward and optimiser are parts of time/compute_s."""
    stages, compute = [record.number(f"time/{stage}_s") for stage in STAGES], record.number("time/compute_s")
    total = sum(stage for stage in stages if stage is not None)
    if compute is not None and total > compute * (1 + CLOSE) + 1e-3:
        yield f"{_of(record)} has stages of {total:.6f} s, and time/compute_s = {compute:.6f}"


def spans_fill_the_round(run: Run, record: MetricsRecord) -> Broken:
    """The spans of a round follow each other without gaps, and each is of a part."""
    text, total = record.values.get(SPANS), record.number("time/round_s")
    if not isinstance(text, str) or total is None:
        return
    found = _SPAN.findall(text)
    if "".join(letter + microseconds for letter, microseconds in found) != text:
        yield f"{_of(record)} has {SPANS} = {text[:40]!r}, which are no spans"
        return
    if abs(sum(int(microseconds) for _, microseconds in found) / 1e6 - total) > 2e-6 + CLOSE * total:
        filled = sum(int(microseconds) for _, microseconds in found) / 1e6
        yield f"{_of(record)} has spans of {filled:.6f} s, and time/round_s = {total:.6f}"


def bits_are_those_of_the_bytes(run: Run, record: MetricsRecord) -> Broken:
    """Payload and bits per value make a whole number of messages, each of all values."""
    bits, payload = record.number("codec/bits_per_value"), record.number("net/payload_bytes")
    values = run.nodes[record.node].values
    if bits is None or payload is None or not values:
        return
    messages = 8 * payload / bits / values if bits else math.nan
    if not messages >= 1 - CLOSE or abs(messages - round(messages)) > CLOSE * messages:
        yield f"{_of(record)} has {payload:.0f} payload bytes of {bits:g} bits a value: {messages:.3f} messages"


def headers_come_on_top(run: Run, record: MetricsRecord) -> Broken:
    """What is on the link is what the sockets sent, and headers."""
    sent, link = record.number("net/sent_bytes"), record.number("net/link_bytes")
    if sent is not None and link is not None and link < sent:
        yield f"{_of(record)} has {link:.0f} bytes on the link, fewer than the {sent:.0f} that its sockets sent"


RECORD_LAWS: tuple[RecordLaw, ...] = (
    nothing_is_negative,
    shares_are_shares,
    parts_make_the_round,
    cpu_parts_make_the_cpu_time,
    stages_are_of_the_computing,
    spans_fill_the_round,
    bits_are_those_of_the_bytes,
    headers_come_on_top,
)


# -- of the run: who


def everybody_is_a_member(run: Run) -> Broken:
    """Records and events are of the run's boards, or of its coordinator, and so are peers."""
    known = {*run.members, COORDINATOR}
    if not run.members:
        return
    for name in run.nodes.keys() - known:
        yield f"{name} has records, and is none of the run's boards"
    for node in run.nodes.values():
        for event in node.events:
            peer = event.fields.get("peer")
            if isinstance(peer, str) and event.name != "refused" and (peer not in known or peer == node.name):
                yield f"the event {event.name} of {node.name} names {peer} as its peer"


# -- of the run: rounds


def rounds_were_asked_for(run: Run) -> Broken:
    """Nobody plays more rounds than the recipe has."""
    asked = run.get("run", "rounds")
    if isinstance(asked, int):
        for node in run.nodes.values():
            if node.rows and (last := max(row.step for row in node.rows)) >= asked:
                yield f"{node.name} has a record of round {last}, and {asked} rounds from 0 on were asked for"


def rounds_come_once(run: Run) -> Broken:
    """Within a stretch rounds only go up."""
    for node in run.nodes.values():
        for before, row in pairwise(node.rows):
            if row.stretch == before.stretch and row.step <= before.step and not _begins_anew(run, node, row.t_s):
                yield f"{node.name} has round {row.step} after round {before.step}, and was not started again between"


def _begins_anew(run: Run, node: Node, t_s: float) -> bool:
    """Whether a board's records here are the coordinator's, which was started again."""
    return not node.own and run.coordinator is not None and len(run.coordinator.starts_s) > 1


def rounds_have_no_holes(run: Run) -> Broken:
    """Within a stretch no round is left out, unless the board says that it had been left behind, or
    is not asked for every round by its coordinator."""
    if run.torn:
        return
    for node in run.nodes.values():
        if run.mode == "server" and node.name != COORDINATOR:
            continue
        jumps_s = [event.t_s for event in node.said("adopted", "left-behind")]
        for before, row in pairwise(node.rows):
            jumped = any(before.t_s <= t_s <= row.t_s for t_s in jumps_s)
            if row.stretch == before.stretch and row.step > before.step + 1 and not jumped:
                yield f"{node.name} has no record between round {before.step} and round {row.step}"


def finished_means_all_rounds(run: Run) -> Broken:
    """A gossip board, and a coordinator, finishes after its last round."""
    asked = run.get("run", "rounds")
    if not isinstance(asked, int) or run.torn:
        return
    for node in run.nodes.values():
        played = run.mode == "gossip" or node.name == COORDINATOR
        if played and node.own and node.said("finished") and not node.said("lost", "error"):
            last = max((row.step for row in node.rows), default=-1)
            if last != asked - 1 and not node.said("ended-early"):
                yield f"{node.name} finished, and its last round is {last} of 0..{asked - 1}"


# -- of the run: clocks


def clocks_go_forward(run: Run) -> Broken:
    """A node's times are at least 0 and never go back: in its records, and in its events."""
    for node in run.nodes.values():
        spoken = [event for event in node.events if event.name not in AFTERWARDS]
        for what, times in (
            ("records", [(f"round {row.step}", row.t_s) for row in node.rows]),
            ("events", [(event.name, event.t_s) for event in spoken]),
        ):
            if times and (first := min(times, key=lambda item: item[1]))[1] < 0:
                yield f"{node.name} has {first[0]} at {first[1]:.3f} s, before the run"
            for (one, before_s), (other, t_s) in pairwise(times):
                if t_s < before_s - _slack_of(node, what):
                    order = f"{one} at {before_s:.3f} s, then {other} at {t_s:.3f} s"
                    yield f"the clock of {node.name} goes back in its {what}: {order}"


def _slack_of(node: Node, what: str) -> float:
    """Who runs the boards says of them that they are lost or started again, by its own clock, which
    began with theirs."""
    return JITTER_S if what == "events" and node.said("lost", "restarted", "resumed", "silent") else 0.0


def rounds_fit_between_their_records(run: Run) -> Broken:
    """A round is no longer than the time since the record of the one before, and the rounds of a
    stretch are as long together as the time that they took."""
    for node in run.nodes.values():
        if not node.own:
            continue  # a coordinator records boards when it hears of them
        since: dict[int, list[Row]] = defaultdict(list)
        for row in node.rows:
            since[row.stretch].append(row)
        for stretch, rows in since.items():
            start_s = node.starts_s[stretch] if stretch >= 0 else 0.0
            edges = [start_s, *(row.t_s for row in rows)]
            for (before_s, t_s), row in zip(pairwise(edges), rows, strict=True):
                if row.round_s is not None and row.round_s > t_s - before_s + JITTER_S:
                    yield (
                        f"round {row.step} of {node.name} took {row.round_s:.3f} s, and its record comes "
                        f"{t_s - before_s:.3f} s after the one before"
                    )
            lasted = sum(row.round_s or 0.0 for row in rows)
            if lasted > edges[-1] - start_s + JITTER_S:
                yield f"the rounds of {node.name} took {lasted:.3f} s in {edges[-1] - start_s:.3f} s of its clock"


def boards_start_before_they_train(run: Run) -> Broken:
    """A round's record comes after `started`, and none after `finished` or `lost` of the same
    process."""
    for node in run.nodes.values():
        if not node.own:
            if run.together and node.rows:
                yield f"{node.name} has rounds and never started"
            continue
        for row in node.rows[:1]:
            if row.stretch < 0:
                yield f"{node.name} has round {row.step} at {row.t_s:.3f} s, and started at {node.starts_s[0]:.3f} s"
        for end in node.said("finished", "lost"):
            begins = node.said("restarted", "resumed", "started")
            until_s = min((event.t_s for event in begins if event.t_s > end.t_s), default=math.inf)
            late = [row for row in node.rows if end.t_s + JITTER_S < row.t_s < until_s]
            if late:
                yield f"{node.name} has round {late[0].step} at {late[0].t_s:.3f} s, and {end.name} at {end.t_s:.3f} s"


# -- of the run: events


def ends_and_returns_alternate(run: Run) -> Broken:
    """A board that finished or was lost does nothing more before it is started again, and ends one
    way."""
    for node in run.nodes.values():
        ended = ""
        for event in node.events:
            if event.name in ("finished", "lost"):
                if ended:
                    yield f"{node.name} has {event.name} after {ended}, and was not started again between"
                ended = event.name
            elif event.name in ("restarted", "resumed", "listening", "started", "loading"):
                if ended and event.name == "started":
                    yield f"{node.name} started after {ended}, and nobody started it again"
                ended = "" if event.name != "started" else ended


def outages_end_once(run: Run) -> Broken:
    """What comes back was away: peers, checkpoints, boards in quarantine or under strain."""
    pairs = {
        "peer-up": ("peer-down", "peer-left"),
        "readmitted": ("quarantine",),
        "checkpoint-back": ("checkpoint-failed",),
        "relieved": ("strained",),
    }
    for node in run.nodes.values():
        seen: Counter[tuple[str, Any]] = Counter()
        for event in node.events:
            peer = event.fields.get("peer")
            seen[(event.name, peer)] += 1
            if event.name in pairs and not any(seen[(name, peer)] for name in pairs[event.name]):
                of = f" of {peer}" if peer else ""
                yield f"{node.name} has {event.name}{of} at {event.t_s:.3f} s, and no {pairs[event.name][0]} before it"


def final_models_have_one_average(run: Run) -> Broken:
    """All boards are compared with the same average."""
    lengths = {e.node: e.fields.get("length") for n in run.boards for e in n.said("compared")[-1:]}
    known = [length for length in lengths.values() if isinstance(length, int | float)]
    if known and not all(_same(length, known[0]) for length in known):
        yield f"boards were compared with averages of different lengths: {', '.join(f'{x:g}' for x in known)}"


# -- of the run: bytes and joules


def links_carry_what_was_sent(run: Run) -> Broken:
    """What went to each neighbour adds up to payload and overhead; while a board is at work, and of
    one that was killed, to no more."""
    for node in run.boards:
        to_peers = [total for name, total in node.sums.items() if name.startswith(LINK_PREFIX)]
        if not to_peers or run.torn or node.missing & {"net/payload_bytes", "net/overhead_bytes"}:
            continue
        by_peers, sent = sum(to_peers), node.sums["net/payload_bytes"] + node.sums["net/overhead_bytes"]
        if by_peers > sent or (node.whole and by_peers != sent):
            yield f"{node.name} sent {sent:.0f} bytes of payload and overhead, and {by_peers:.0f} to its neighbours"


def links_are_edges(run: Run) -> Broken:
    """Boards send to those whom the topology joins them with, one way or the other."""
    topology = run.data.topology
    if topology is None or not topology.get("rounds"):
        return
    edges = {frozenset(edge) for one in topology["rounds"] for edge in one.get("edges", ())}
    for node in run.boards:
        for peer in _peers(node):
            if node.sums[f"{LINK_PREFIX}{peer}{LINK_BYTES}"] and frozenset((node.name, peer)) not in edges:
                yield f"{node.name} sent to {peer}, and topology.json has no edge between them"


def sockets_carry_the_frames(run: Run) -> Broken:
    """The kernel counted no fewer bytes than payload and overhead have; but of a connection that
    broke it does not tell what it carried last."""
    for node in run.boards:
        sent = node.sums.get("net/sent_bytes")
        broke = any("peer" in event.fields for event in node.said("peer-down", "notice"))
        if sent is None or not node.whole or broke:
            continue
        frames = node.sums.get("net/payload_bytes", 0.0) + node.sums.get("net/overhead_bytes", 0.0)
        if sent < frames * (1 - LAST_LOOK):
            yield f"{node.name} sent {frames:.0f} bytes of payload and overhead, and its sockets {sent:.0f}"


def what_was_sent_was_received(run: Run) -> Broken:
    """A gossip board received what its neighbours say has reached it, but for what came after it
    had looked at its sockets last; and all boards received no more than all sent."""
    if run.mode != "gossip" or not run.together or run.torn or not all(node.whole for node in run.boards):
        return
    for node in run.boards:
        received, came, under_way = node.sums.get("net/received_bytes"), 0.0, 0.0
        for other in run.boards:
            to_it = other.sums.get(f"{LINK_PREFIX}{node.name}{LINK_BYTES}", 0.0)
            came += to_it
            under_way += UNDER_WAY * _message_bytes(other) if to_it else 0.0
        if received is not None and came > received * (1 + LAST_LOOK) + under_way:
            yield f"{node.name} received {received:.0f} bytes, and its neighbours brought {came:.0f} to it"
    totals = [sum(node.sums.get(name, 0.0) for node in run.boards) for name in ("net/received_bytes", "net/sent_bytes")]
    slack = sum(UNDER_WAY * _message_bytes(node) for node in run.boards)
    if all("net/sent_bytes" in node.sums for node in run.boards) and totals[0] > totals[1] * (1 + LAST_LOOK) + slack:
        yield f"all boards received {totals[0]:.0f} bytes, and sent {totals[1]:.0f}"


def _message_bytes(node: Node) -> float:
    """Bytes of one message of a board, in the mean."""
    sent = node.sums.get("net/payload_bytes", 0.0) + node.sums.get("net/overhead_bytes", 0.0)
    return sent / node.messages if node.messages else 0.0


def coordinator_and_boards_count_the_same(run: Run) -> Broken:
    """What boards sent the coordinator received, and what it sent they received: up and down,
    once."""
    coordinator = run.coordinator
    if coordinator is None or not run.together or run.torn:
        return
    if not all(node.whole and "net/sent_bytes" in node.sums for node in (coordinator, *run.boards)):
        return
    model = 4.0 * max((node.values or 0 for node in run.boards), default=0)
    for ours, theirs in (("net/received_bytes", "net/sent_bytes"), ("net/sent_bytes", "net/received_bytes")):
        at_it, at_them = coordinator.sums[ours], sum(node.sums[theirs] for node in run.boards)
        # Models of the last evaluation and of the goodbye come after the coordinator's last record;
        # what boards' sockets carried before their first round is the hello.
        slack = len(run.boards) * (3 * model + 20_000) + 3 * LAST_LOOK * max(at_it, at_them)
        if abs(at_it - at_them) > slack:
            yield f"boards count {at_them:.0f} bytes as {theirs}, and the coordinator {at_it:.0f} as {ours}"


# -- of the run: files


def summary_is_that_of_the_records(run: Run) -> Broken:
    """summary.json says what its records add up to."""
    stored = run.data.summary
    if stored is None:
        return
    made = summarise(run.data)
    yield from _differs("", {key: value for key, value in stored.items() if key not in ("verdict", "run")}, made)


def _differs(where: str, stored: Any, made: Any) -> Iterator[str]:
    """Keys that only one of them has are passed over."""
    if isinstance(stored, Mapping) and isinstance(made, Mapping):
        for key in stored.keys() & made.keys():
            yield from _differs(f"{where}.{key}" if where else str(key), stored[key], made[key])
    elif isinstance(stored, list) and isinstance(made, list) and len(stored) == len(made):
        for k, (one, other) in enumerate(zip(stored, made, strict=True)):
            name = one.get("node", k) if isinstance(one, Mapping) else k
            yield from _differs(f"{where}.{name}", one, other)
    elif not _same(stored, made):
        yield f"summary.json has {where} = {_word(stored)}, and its records say {_word(made)}"


def _same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal; numbers up to the last digits of a sum."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=EXACT, abs_tol=EXACT)
    return bool(one == other)


def _word(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _peers(node: Node) -> Iterator[NodeId]:
    for name in node.sums:
        if name.startswith(LINK_PREFIX):
            yield name.removeprefix(LINK_PREFIX).removesuffix(LINK_BYTES)


LAWS: tuple[Law, ...] = (
    everybody_is_a_member,
    rounds_were_asked_for,
    rounds_come_once,
    rounds_have_no_holes,
    finished_means_all_rounds,
    clocks_go_forward,
    rounds_fit_between_their_records,
    boards_start_before_they_train,
    ends_and_returns_alternate,
    outages_end_once,
    final_models_have_one_average,
    links_carry_what_was_sent,
    links_are_edges,
    sockets_carry_the_frames,
    what_was_sent_was_received,
    coordinator_and_boards_count_the_same,
    summary_is_that_of_the_records,
)
