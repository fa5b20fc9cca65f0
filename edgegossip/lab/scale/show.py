"""What `plan` and `calibrate` print for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgegossip.lab.scale.devices import SHORT_STEP, SHORT_STEP_S
from edgegossip.report.units import bytes_text, seconds_text

_COLUMNS = (
    ("compute", "compute_s"),
    ("encode", "encode_s"),
    ("transmit", "transmit_s"),
    ("decode", "decode_s"),
    ("wait", "wait_s"),
    ("round", "round_s"),
)


def plan_text(plan: Mapping[str, Any]) -> str:
    """The document of `plan --json` as a page."""
    way = "peer to peer" if plan["mode"] == "gossip" else "through a coordinator"
    lines = [
        f"{plan['recipe']} on fleet {plan['fleet']}: {plan['boards']} boards, {way}. Modelled: nothing has run.",
        "",
        f"a message   {bytes_text(plan['message_bytes'])}: {plan['values']} values in {plan['codec']}, "
        f"{plan['bits_per_value']:.2f} bits each (encoded here)",
        *_down(plan),
        f"a round     {seconds_text(plan['round_s'])}, {bytes_text(plan['round_bytes'])} over all links",
        f"the run     {seconds_text(plan['run_s'])}, {bytes_text(plan['run_bytes'])}",
        "",
        _table(plan["kinds"]),
        "",
        _limit(plan),
        *_memory(plan["kinds"]),
        *_short(plan["step_s"]),
        _faster(plan),
    ]
    return "\n".join(lines)


def _down(plan: Mapping[str, Any]) -> list[str]:
    if plan["downlink"] is None:
        return []
    return [f"one down    {bytes_text(plan['down_bytes'])}: the model in {plan['downlink']}"]


def _table(kinds: list[Mapping[str, Any]]) -> str:
    head = ["board", "number", *(name for name, _ in _COLUMNS), "memory"]
    rows = [
        [
            str(kind["device"]),
            str(kind["boards"]),
            *(seconds_text(kind[key]) for _, key in _COLUMNS),
            f"{bytes_text(kind['memory_bytes'])} of {bytes_text(kind['has_bytes'])}",
        ]
        for kind in kinds
    ]
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    )


def _limit(plan: Mapping[str, Any]) -> str:
    what, saves = plan["limit"]["what"], plan["limit"]["saves"]
    if what == "latency":
        return "limited by the link's latency: no faster board and no faster link would shorten a round by a hundredth"
    name = f"the {what}" if "link" in what else f"computing on {what}"
    return f"limited by {name}: twice as fast, a round would be {saves:.0%} shorter"


def _short(step_s: float) -> list[str]:
    return [f"a step takes {1000 * step_s:.2g} ms by the profile; {SHORT_STEP}"] if step_s < SHORT_STEP_S else []


def _memory(kinds: list[Mapping[str, Any]]) -> list[str]:
    return [
        f"{kind['device']} is too small: it has {bytes_text(kind['has_bytes'])}, and a board takes "
        f"{bytes_text(kind['memory_bytes'])}; take a smaller model or training.batch_size, or leave these boards out"
        for kind in kinds
        if kind["memory_bytes"] > kind["has_bytes"]
    ]


def _faster(plan: Mapping[str, Any]) -> str:
    rival = plan["faster_codec"]
    if rival is None:
        return f"no codec that loses little would be faster than {plan['codec']} by more than 2 %"
    return (
        f"{rival['codec']} would be faster: {rival['bits_per_value']:.2f} bits a value, {seconds_text(rival['seconds'])} "
        f"a round in place of {seconds_text(plan['round_s'])}; try {' '.join(f'--set {s}' for s in rival['settings'])}"
    )
