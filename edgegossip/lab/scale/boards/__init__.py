"""Cells on a live fleet: boards ask the operator's machine what to run, run it among themselves,
and hand in their records.
"""
