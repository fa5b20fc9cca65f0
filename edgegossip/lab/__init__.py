"""What surrounds the engines to learn about them, and never runs on a board.

sim     the engines in virtual time, under faults drawn from a seed (docs/simulator.md)
study   accuracy of many runs over virtual nodes in one process (docs/study.md)
scale   what training costs by the number of boards: planned, modelled, emulated (docs/scale.md)
bench   our parts beside their best rivals in the same run (docs/benchmarks.md)
"""
