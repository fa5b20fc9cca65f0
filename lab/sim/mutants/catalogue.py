"""All mutants."""

from __future__ import annotations

from collections.abc import Mapping

from lab.sim.mutants import boards, mathematics, pairwise, rounds, server, shell, streams
from lab.sim.mutants.mutant import Mutant

MUTANTS: Mapping[str, Mutant] = {
    m.name: m for part in (mathematics, streams, rounds, pairwise, boards, server, shell) for m in part.MUTANTS
}
