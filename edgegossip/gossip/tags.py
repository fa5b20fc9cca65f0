"""Tags of the numbers beside a body by their bare names, the members of `frame.Aux`: Python 3.11 takes long to find one in its
class, and a message asks for twenty."""

from typing import Final

from edgegossip.frame import Aux

PUSH_SUM_WEIGHT: Final = Aux.PUSH_SUM_WEIGHT
LOSS: Final = Aux.LOSS
EXAMPLES: Final = Aux.EXAMPLES
LEARNING_RATE: Final = Aux.LEARNING_RATE
STEPS: Final = Aux.STEPS
SESSION: Final = Aux.SESSION
SHARE: Final = Aux.SHARE
LIFE: Final = Aux.LIFE
PART: Final = Aux.PART
PARTS: Final = Aux.PARTS
MODEL: Final = Aux.MODEL
FRESH: Final = Aux.FRESH
PHASE: Final = Aux.PHASE
ANSWER: Final = Aux.ANSWER
SETTLED: Final = Aux.SETTLED
EPOCH: Final = Aux.EPOCH
LEVELS: Final = Aux.LEVELS
CHALLENGE: Final = Aux.CHALLENGE
