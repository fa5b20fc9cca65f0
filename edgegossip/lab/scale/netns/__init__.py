"""Machines of a fleet as network namespaces of this one, and links between them that are as slow as
real ones."""
