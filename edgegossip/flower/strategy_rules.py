"""What Flower's strategies need of their parameters and of a round, said before a round is lost to it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from flwr.serverapp.strategy import Bulyan, FedTrimmedAvg, Strategy

from edgegossip.flower.sampling import wanted
from edgegossip.recipe import ServerSection
from edgegossip.types import ConfigError

_LOWEST = {"num_malicious_nodes": 0, "num_nodes_to_select": 1}
_HALF = {"beta": FedTrimmedAvg}  # the share that is cut off at either end leaves something only below a half


def check_params(name: str, make: Callable[..., Strategy], params: Mapping[str, Any]) -> None:
    """Raises ConfigError for a value of the wrong type or out of its range; names are the strategy's own to check."""
    known = inspect.signature(make).parameters
    for key, value in params.items():
        if key in known and (problem := _problem(make, key, known[key].default, value)):
            raise ConfigError(f"server.strategy_params.{key} = {value!r} of {name}: {problem}")


def _problem(make: Callable[..., Strategy], key: str, default: Any, value: Any) -> str:
    """What is wrong with a value, "" for nothing. Defaults say of what type it is."""
    if not isinstance(default, (int, float)):
        return "this is not for a recipe"
    whole = isinstance(default, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return "a whole number is needed" if whole else "a number is needed"
    if not math.isfinite(value):
        return "it is not finite"
    if key in _LOWEST and value < _LOWEST[key]:
        return f"at least {_LOWEST[key]}"
    if _HALF.get(key) is make and not 0 <= value < 0.5:
        return "from 0 to below 0.5"
    return ""


def needed(strategy: Strategy) -> int:
    """Answers without which the strategy makes no model."""
    if isinstance(strategy, Bulyan):
        return 4 * strategy.num_malicious_nodes + 3
    return 1


def too_few(strategy: Strategy, answers: int) -> str:
    """What is wrong with so many answers, "" for nothing."""
    least = needed(strategy)
    if answers >= least:
        return ""
    count = f"4*{strategy.num_malicious_nodes} + 3 = {least}" if isinstance(strategy, Bulyan) else f"{least}"
    return f"{type(strategy).__name__.lower()} needs {count} answers, got {answers}"


def check_enough(strategy: Strategy, server: ServerSection, boards: int) -> None:
    """Raises ConfigError when no round of a run with so many boards can have the answers that the strategy needs."""
    asked = min(boards, wanted(server, boards))
    answers = min(asked, server.quorum or asked)
    if words := too_few(strategy, answers):
        keys = "run.nodes, server.fraction and server.quorum"
        raise ConfigError(f"server.strategy: {words} in every round by {keys}: raise these or choose another strategy")
