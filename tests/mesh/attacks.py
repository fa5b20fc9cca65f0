"""How long each attack of tests/mesh/security lasts against a board with its default limits:
`python -m tests.mesh.attacks`.

Prints a Markdown table: from the attacker's first byte until the reason is in the log of the board.
The bystanders are tried after each.
"""

from __future__ import annotations

import ssl
import tempfile
import time
from pathlib import Path
from typing import Any

from edgegossip.mesh import MeshLimits
from edgegossip.mesh.base import Notice
from tests.mesh.fleet import TestFleet
from tests.mesh.security import support, test_admission, test_identity, test_patience, test_tokens

TLS_1_1 = {
    "minimum_version": ssl.TLSVersion.TLSv1_1,
    "maximum_version": ssl.TLSVersion.TLSv1_1,
    "ciphers": "ALL:@SECLEVEL=0",
}
CASES = [
    *((f"certificate: {what}", test_admission.test_a_caller_with, (what,)) for what in ("none", *support.BAD)),
    ("TLS 1.1", test_admission.test_a_downgrade, (TLS_1_1, "it does not speak TLS 1.3")),
    (
        "downgrade to TLS 1.2",
        test_admission.test_a_downgrade,
        ({"maximum_version": ssl.TLSVersion.TLSv1_2}, "it does not speak TLS 1.3"),
    ),
    ("plaintext HTTP/2", None, (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",)),
    ("gRPC without an admission handshake", test_tokens.test_grpc_without_an_admission_handshake, ()),
    ("certificate of c, Hello of a", test_identity.test_the_certificate_of_c_for_a_stream_of_a, ()),
    ("overheard token", test_tokens.test_a_token_of_somebody_else, ()),
    ("frame of another run", test_identity.test_a_frame_of_another_run, ()),
    ("replayed frame", test_identity.test_a_replayed_frame, ()),
    ("oversize", test_identity.test_a_huge_frame, ()),
    ("connects and says nothing", None, ()),
    ("drips bytes", test_patience.test_a_caller_that_drips, ()),
    ("silent in the admission handshake", test_patience.test_a_caller_that_says_nothing_in_the_admission_handshake, ()),
    ("stream without Hello", test_patience.test_a_stream_without_hello, ()),
    ("flood of streams", test_patience.test_a_flood_of_streams, ()),
]


def main() -> None:
    support.LIMITS = MeshLimits(max_frame_bytes=1 << 20)
    said: list[tuple[float, str]] = []
    wait_for = support.wait_for

    def noted(*arguments: Any) -> Any:
        event = wait_for(*arguments)
        if isinstance(event, Notice) and event.text.startswith("refused"):
            said.append((time.monotonic(), event.text))
        return event

    support.wait_for = noted
    print("| attack | seconds | in the log of the board |\n| --- | ---: | --- |")
    with tempfile.TemporaryDirectory() as folder:
        fleet = TestFleet.make(Path(folder))
        for name, attack, more in CASES:
            pair = support.pair(fleet)
            two = next(pair)
            began_s = time.monotonic()
            if attack is not None:
                attack(fleet, two, *more)
            elif more:
                test_admission.test_plaintext(two, *more)
            else:
                test_patience.test_a_caller_that_connects_and_says_nothing(two)
            when_s, text = said.pop()
            for _ in pair:  # the bystanders are tried, and the boards closed
                pass
            print(f"| {name} | {when_s - began_s:.2f} | {text.replace('|', ' ')} |", flush=True)


if __name__ == "__main__":
    main()
