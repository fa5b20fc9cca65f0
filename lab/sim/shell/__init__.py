"""Whole boards in virtual time: the program of a board, with its mesh, members and checkpoints,
over a network and disks that fail as the simulator's do. lab/sim/README.md tells what they play."""

from lab.sim.shell.run import SHELL_RULES, draw, run_shell

__all__ = ["SHELL_RULES", "draw", "run_shell"]
