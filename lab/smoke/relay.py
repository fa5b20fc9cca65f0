"""Standard input and output to a TCP port and back: qemu starts one for each connection of the
board (guestfwd=...-cmd:), so it imports little. Nothing else may be written: standard error, too,
is the board's connection."""

import os
import socket
import sys
import threading


def main(host: str, port: str, source: str) -> None:
    """`source`: the board's own address, at which whom it reaches will look for it."""
    with socket.create_connection((host, int(port)), timeout=30, source_address=(source, 0)) as there:
        there.settimeout(None)

        def out() -> None:
            while data := there.recv(65536):
                while data:
                    data = data[os.write(1, data) :]
            os._exit(0)

        threading.Thread(target=out, daemon=True).start()
        while data := os.read(0, 65536):
            there.sendall(data)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError:  # nobody listens, or somebody is gone: the board sees its connection end
        os._exit(1)
