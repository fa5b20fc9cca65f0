"""What proves the package, and is in no wheel: run from a clone of the project.

sim    the engines in virtual time, under faults drawn from a seed: `python -m lab.sim`
faults mistakes planted in the product, and which of them the tests find: `python -m lab.faults`
bench  our parts beside their best alternatives in the same run: `python -m lab.bench`
"""
