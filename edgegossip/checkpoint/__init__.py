"""Checkpoints: states to bytes and back without pickle, files that are whole or not there, and who
writes them when.

registry, format: what a state becomes. files, store: what stands on a disk. writer: off the
critical path. docs/checkpoints.md says what is promised.
"""
