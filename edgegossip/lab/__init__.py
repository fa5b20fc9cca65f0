"""What surrounds the engines to learn about them; no run needs it.

sim     the engines in virtual time, under faults drawn from a seed (docs/simulator.md)
study   accuracy of many runs over virtual nodes in one process (docs/study.md)
scale   what training costs by the number of boards: planned, modelled, emulated (docs/scale.md)
bench   our parts beside their best alternatives in the same run (docs/benchmarks.md)
accept  all of one machine, beside what its profile predicts (docs/boards.md)

Studies and scalability runs are campaigns over many cases:

campaign.py   what has no result yet is run, on several processes if asked; then tables and plots
results.py    results that survive kill -9, so that a campaign is resumed
table.py      text, Markdown and CSV of the same cells
plots.py      figures, with matplotlib

The simulator's own campaign (sim/campaign.py) keeps no results: it counts, and a seed is enough to
see a failure again. It stays pure, and imports none of these.
"""
