"""What proves the package, and is in no wheel: run from a clone of the project.

sim    the engines in virtual time, under faults drawn from a seed: `python -m lab.sim`
bench  our parts beside their best alternatives in the same run: `python -m lab.bench`
"""
