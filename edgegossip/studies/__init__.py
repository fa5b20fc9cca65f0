"""Studies: many runs of one recipe with some keys changed, each over virtual nodes in one process,
for accuracy tables.

Nothing here has sockets. The algorithms, codecs, frames and workloads are those of a fleet; what
stands in for the network and the boards is `virtual.py` (gossip) and `server.py` (rounds through a
coordinator).

cases.py      the cases of a study: cartesian sweeps and files with explicit cases
virtual.py    gossip algorithms over virtual nodes, on a virtual clock
server.py     FedAvg of encoded updates
lanes.py      nodes that compute at the same time
measure.py    what is recorded on the way: consensus distance, accuracy of the averaged model, bytes
run_case.py   one case, from recipe to result
summary.py    means and deviations over seeds for the table, and curves for the plots
campaign.py   the command: `sweep.campaign` for studies
"""
