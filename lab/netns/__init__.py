"""Real boards in network namespaces of this machine: what `edgegossip scale` models, measured.

Machines of a fleet are network namespaces, links between them are as slow as real ones, and a
scheduler lets each board compute as if it had a machine to itself. It needs root and iproute2.

run_cell.py     a cell on real processes; `NetnsCampaign` is `edgegossip.scale` of such cells
network.py      namespaces, and the access point that they share
dilation.py     a board's clock, transport and workload under time dilation
scheduler.py    gives boards their turns
emulated.py     how much slower than a core of this machine a board is
"""
