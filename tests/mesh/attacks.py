"""How long each attack of test_security.py lasts against a board with its default limits: `python -m tests.mesh.attacks`.

Prints a Markdown table: from the attacker's first byte until the reason is in the log of the board. The bystanders are tried
after each.
"""

from __future__ import annotations

import ssl
import tempfile
import time
from pathlib import Path

from edgegossip.mesh import MeshLimits
from tests.mesh import test_security as attacks
from tests.mesh.fleet import TestFleet

TLS_1_1 = {
    "minimum_version": ssl.TLSVersion.TLSv1_1,
    "maximum_version": ssl.TLSVersion.TLSv1_1,
    "ciphers": "ALL:@SECLEVEL=0",
}
CASES = [
    *((f"certificate: {what}", attacks.test_a_caller_with, (what,)) for what in ("none", *attacks.BAD)),
    ("TLS 1.1", attacks.test_a_downgrade, (TLS_1_1, "it does not speak TLS 1.3")),
    (
        "downgrade to TLS 1.2",
        attacks.test_a_downgrade,
        ({"maximum_version": ssl.TLSVersion.TLSv1_2}, "it does not speak TLS 1.3"),
    ),
    ("plaintext HTTP/2", None, (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",)),
    ("gRPC without a knock", attacks.test_grpc_without_a_knock, ()),
    ("certificate of c, Hello of a", attacks.test_the_certificate_of_c_for_a_stream_of_a, ()),
    ("overheard ticket", attacks.test_a_ticket_of_somebody_else, ()),
    ("frame of another run", attacks.test_a_frame_of_another_run, ()),
    ("replayed frame", attacks.test_a_replayed_frame, ()),
    ("oversize", attacks.test_a_huge_frame, ()),
    ("connects and says nothing", None, ()),
    ("drips bytes", attacks.test_a_caller_that_drips, ()),
    ("knocks and says nothing", attacks.test_a_caller_that_knocks_and_says_nothing, ()),
    ("stream without Hello", attacks.test_a_stream_without_hello, ()),
    ("flood of streams", attacks.test_a_flood_of_streams, ()),
]


def main() -> None:
    attacks.LIMITS = MeshLimits(max_frame_bytes=1 << 20)
    said: list[tuple[float, str]] = []
    told = attacks.told

    def noted(b: object, words: str) -> str:
        text = told(b, words)
        said.append((time.monotonic(), text))
        return text

    attacks.told = noted
    print("| attack | seconds | in the log of the board |\n| --- | ---: | --- |")
    with tempfile.TemporaryDirectory() as folder:
        fleet = TestFleet.make(Path(folder))
        for name, attack, more in CASES:
            pair = attacks.pair.__wrapped__(fleet) if hasattr(attacks.pair, "__wrapped__") else attacks.pair(fleet)
            two = next(pair)
            began_s = time.monotonic()
            if attack is not None:
                attack(fleet, two, *more)
            elif more:
                attacks.test_plaintext(two, *more)
            else:
                attacks.test_a_caller_that_connects_and_says_nothing(two)
            when_s, text = said.pop()
            for _ in pair:  # the bystanders are tried, and the boards closed
                pass
            print(f"| {name} | {when_s - began_s:.2f} | {text.replace('|', ' ')} |", flush=True)


if __name__ == "__main__":
    main()
