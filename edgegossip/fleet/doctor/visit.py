"""A visit: this machine, its identity, its ports, its peers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgegossip.fleet import link_test
from edgegossip.fleet.doctor import checks
from edgegossip.fleet.doctor.checks import Finding, Validity
from edgegossip.fleet.doctor.facts import gather, hostname
from edgegossip.types import EdgegossipError, PeerError

_MAX_MTU = 65_535  # of a path, as the kernel counts it; loopback has one byte more


def visit(
    folder: Path,
    identity: Path | None,
    ports: Sequence[int],
    peers: Sequence[tuple[str, int]],
    matrix: bool = False,
    root: Path = Path("/"),
    device: Callable[[], str] | None = None,
) -> dict[str, Any]:
    """The document of `doctor --json`. `links` is this machine's row of the fleet's bandwidth
    matrix; with `matrix` the peers' rows, too, one link after the other. `device` computes a little
    where the board is to train, and says where that is."""
    facts = gather(root, folder)
    found = checks.examine(facts)
    if device is not None:
        found += _of_device(device)
    if identity is not None:
        found += _of_identity(identity, facts.unix_s)
    for port in ports:
        found += _of_port(port)
    links = []
    for host, port in peers:
        name = f"{host}:{port}"
        try:
            rate = link_test.measure(host, port)
        except PeerError as error:
            found.append(Finding("bad", "link", str(error)))
            continue
        found += checks.peer(name, rate, link_test.own_versions(), _mtu_towards(host, port))
        links.append({"from": hostname(), "to": name, **asdict(rate)})
    if matrix:
        rows, troubles = _between(peers)
        links, found = links + rows, found + troubles
    found = checks.ordered(found)
    return {
        "host": hostname(),
        "board": facts.board,
        "findings": [asdict(finding) for finding in found],
        "links": links,
        "bad": sum(f.level == "bad" for f in found),
        "warnings": sum(f.level == "warning" for f in found),
    }


def _mtu_towards(host: str, port: int) -> int | None:
    """Of this machine's interface from which packets go there; None where that cannot be told.
    Nothing is sent."""
    import psutil

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            own = probe.getsockname()[0]
    except OSError:
        return None
    names = [name for name, kinds in psutil.net_if_addrs().items() if any(kind.address == own for kind in kinds)]
    stats = psutil.net_if_stats()
    return next((min(stats[name].mtu, _MAX_MTU) for name in names if name in stats), None)


def _between(peers: Sequence[tuple[str, int]]) -> tuple[list[dict[str, Any]], list[Finding]]:
    """What each peer measures to each other one."""
    rows, troubles = [], []
    for near in peers:
        for far in peers:
            if near == far:
                continue
            try:
                rate = link_test.measure_from(*near, far)
            except PeerError as error:
                troubles.append(Finding("bad", "link", str(error)))
                continue
            rows.append({"from": f"{near[0]}:{near[1]}", "to": f"{far[0]}:{far[1]}", **asdict(rate)})
    return rows, troubles


def _of_identity(folder: Path, now_s: float) -> list[Finding]:
    from edgegossip.security.identity import Identity

    try:
        own = Identity.load(folder)
    except EdgegossipError as error:
        return [Finding("bad", "certificates", str(error))]
    valid = [
        Validity(f"the certificate of {own.name}", *own.certificate.valid),
        Validity("the certificate of the fleet's authority", *own.authority.valid),
    ]
    return list(checks.certificates(valid, now_s))


def _of_device(device: Callable[[], str]) -> list[Finding]:
    try:
        return [Finding("good", "device", device())]
    except EdgegossipError as error:
        return [Finding("bad", "device", str(error))]
    except ImportError:
        return []  # a finding of its own says that torch is not there


def _of_port(port: int) -> list[Finding]:
    try:
        with socket.create_server(("", port)):
            return [Finding("good", "ports", f"port {port} is free")]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        text = f"port {port} cannot be listened on ({reason}): `ss -ltnp` says who has it, or take another one"
        return [Finding("bad", "ports", text)]


def text_of(document: dict[str, Any]) -> str:
    """For people: a line a finding, the worst first."""
    mark = {"bad": "!!", "warning": " !", "good": "ok"}
    lines = [f"{document['host']}{' (' + document['board'] + ')' if document['board'] else ''}"]
    lines += [f"{mark[f['level']]}  {f['about']:<12}  {f['text']}" for f in document["findings"]]
    if len({link["from"] for link in document["links"]}) > 1:
        lines += ["", *_matrix(document["links"])]
    bad, warnings = document["bad"], document["warnings"]
    lines.append(f"{bad} to put right, {warnings} to know of" if bad or warnings else "nothing found wrong")
    return "\n".join(lines)


def _matrix(links: Sequence[dict[str, Any]]) -> list[str]:
    """Mbit/s from each machine to each other one."""
    rates = {(link["from"], link["to"]): link["up_bits_per_s"] / 1e6 for link in links}
    to = list(dict.fromkeys(link["to"] for link in links))
    rows = [["Mbit/s from", *to]]
    for near in dict.fromkeys(link["from"] for link in links):
        rows.append([near, *(f"{rates[near, far]:.1f}" if (near, far) in rates else "-" for far in to)])
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
