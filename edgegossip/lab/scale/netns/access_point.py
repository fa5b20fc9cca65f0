"""Boards that share one access point, or have a slow link each: a namespace a board, and a router
between them.

Shared: whatever one board sends to another goes once through the cell, a pair of interfaces in the
router with a token bucket (`tc ... tbf`) before it, in whichever direction. So all boards share its
rate, as they share the air of a Wi-Fi access point. A byte is charged once; over the air it is sent
twice, up and down, so `rate` is half of what the radio moves.

    board --port-- [rule: what comes in from a port] -> cell0 [tbf] -> cell1 -> [routes] --port-- board

Each: the router hands on at once, and every board has a bucket for what it sends and one for what
it gets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from edgegossip.lab.scale.netns.namespaces import Namespaces, command, ip, raise_backlog
from edgegossip.types import ConfigError

LINKS = ("shared", "each")
# A full queue is so long at most: more than an exchange of compressed gradients piles up, so that
# nothing is lost. What TCP waits before it sends a lost segment again, 0.2 s of the wall, would be
# seconds on clocks that run faster.
QUEUE_S = 4.0
BURST_S = 0.005
_MOST = 4096  # boards; addresses are 10.79.0.0/16 in fours
_CELL = "10.79.255.252"


class AccessPoint(Namespaces):
    """Machines 1 to `size` and what joins them."""

    def __init__(self, size: int, rate_bps: float, link: str = "shared") -> None:
        """Raises HostError when it cannot be made; nothing is left then."""
        if link not in LINKS:
            raise ConfigError(f"--link {link}: one of {', '.join(LINKS)}")
        if not 1 <= size < _MOST:
            raise ConfigError(f"{size} boards: an access point takes 1 to {_MOST - 1}")
        super().__init__()
        self.size, self.rate_bps, self.link = size, rate_bps, link
        raise_backlog()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def address(self, machine: int) -> str:
        """Its address, without a port."""
        return _address(machine, 2)

    def namespace(self, machine: int) -> str:
        """Full name of its namespace."""
        return self.named(f"m{machine}")

    def inside(self, machine: int) -> tuple[str, ...]:
        """What comes before a command that is to run on this machine."""
        return ("ip", "netns", "exec", self.namespace(machine))

    def slow_down(self, factor: float) -> None:
        """From now on every link has 1/factor of its rate; below 1 that is more."""
        self._shape_all(self.rate_bps / factor)

    def carried_bytes(self) -> tuple[int, ...]:
        """Bytes that each link has let through since the beginning, headers of Ethernet, IP and TCP
        included: the cell, or up and down of every board's own."""
        rows = json.loads(ip("-n", self._router, "-s", "-j", "link", "show"))
        counters = {row["ifname"]: row["stats64"] for row in rows}
        if self.link == "shared":
            return (int(counters["cell0"]["tx"]["bytes"]),)
        ports = [counters[f"port{k}"] for k in range(1, self.size + 1)]
        return tuple(int(port[way]["bytes"]) for port in ports for way in ("tx", "rx"))

    def _open(self) -> None:
        self._router = self.add("router")
        for k in range(1, self.size + 1):
            self.add(f"m{k}")
        _batch(self._router, self._links())
        router = ("ip", "netns", "exec", self._router, "sh", "-c")
        command(
            *router,
            "echo 1 >/proc/sys/net/ipv4/ip_forward; for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$f; done",
        )
        for k in range(1, self.size + 1):
            _batch(self.namespace(k), _board(k))
        if self.link == "shared":
            _batch(self._router, self._cell())
        self._shape_all(self.rate_bps)

    def _shape_all(self, rate_bps: float) -> None:
        if self.link == "shared":
            _shape(self._router, "cell0", rate_bps, self.rate_bps)
            return
        for k in range(1, self.size + 1):
            _shape(self._router, f"port{k}", rate_bps, self.rate_bps)
            _shape(self.namespace(k), "wire", rate_bps, self.rate_bps)

    def _links(self) -> list[str]:
        lines = ["link add cell0 type veth peer name cell1"] if self.link == "shared" else []
        for k in range(1, self.size + 1):
            lines += [
                f"link add port{k} type veth peer name wire netns {self.namespace(k)}",
                f"address add {_address(k, 1)}/30 dev port{k}",
                f"link set port{k} gso_max_segs 1 up",
            ]
        return lines

    def _cell(self) -> list[str]:
        """What comes in from a port leaves through cell0, comes in again from cell1, and goes to
        its port from there."""
        (link,) = json.loads(ip("-n", self._router, "-j", "link", "show", "cell1"))
        return [
            "link set cell0 up",
            "link set cell1 up",
            f"address add {_CELL}/31 dev cell0",
            f"neigh replace 10.79.255.253 lladdr {link['address']} dev cell0 nud permanent",
            "route add default via 10.79.255.253 dev cell0 table 100",
            *(f"rule add iif port{k} table 100" for k in range(1, self.size + 1)),
        ]


def _board(machine: int) -> list[str]:
    # Packets are cut before they are counted and delayed, as on a wire, not by a card behind it.
    return [
        f"address add {_address(machine, 2)}/30 dev wire",
        "link set wire gso_max_segs 1 up",
        f"route add default via {_address(machine, 1)}",
    ]


def _address(machine: int, end: int) -> str:
    return f"10.79.{machine // 64}.{machine % 64 * 4 + end}"


def _batch(namespace: str, lines: Sequence[str]) -> None:
    command("ip", "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


def _shape(namespace: str, interface: str, rate_bps: float, full_bps: float) -> None:
    """The queue is that of the full rate: it is bytes, and as many of them in dilated time. What
    passes at once is of the rate there is: in dilated time that of the full one would be a good
    part of a small exchange."""
    limit_bytes = max(256_000, round(full_bps / 8 * QUEUE_S))
    shape = f"handle 1: tbf rate {rate_bps:.0f}bit burst {burst_bytes(rate_bps)} limit {limit_bytes}"
    command("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", *shape.split())


def burst_bytes(rate_bps: float) -> int:
    """What passes in BURST_S of the wall, by which the kernel has looked again; ten packets at
    least."""
    return max(16_000, round(rate_bps / 8 * BURST_S))
