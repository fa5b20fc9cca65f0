"""Machines of a fleet as network namespaces of this one, links between them that are as slow as
real ones, and a scheduler by whose clock they seem to have a machine each.
"""
