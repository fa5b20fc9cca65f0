"""From nothing to a training board, under emulation: `make image-smoke` (python -m
lab.smoke). Needs root.

A stage that was done is not done again; each prints its seconds. The emulated board
(qemu-system-aarch64) reaches a few ports of this machine and no network: they are at addresses of a
network namespace that only this run has."""
