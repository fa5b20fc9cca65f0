"""What a coordinator runs, for a board that knows its address and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import httpx

from edgegossip.flower._private.link import LinkError, answered, speaks_tls, without_identity
from edgegossip.flower.admission import RECIPE_PATH
from edgegossip.flower.credentials import ASK_DOMAIN, BoardCredentials
from edgegossip.types import NodeId

ASK_S = 30.0


@dataclass(frozen=True, slots=True)
class Told:
    """`recipe` is TOML, not looked at yet."""

    recipe: str
    boards: tuple[NodeId, ...]


def ask(address: str, credentials: BoardCredentials | None) -> Told:
    """Raises LinkError, whose `gone` says that nobody answered there."""
    scheme, document = "http", dict[str, str]()
    if credentials is not None:
        clock = datetime.now(UTC).isoformat()
        scheme, document = "https", {"proof": credentials.proof(ASK_DOMAIN, clock.encode()), "time": clock}
    context = credentials.context if credentials is not None else False
    with answered(address), httpx.Client(verify=context, timeout=ASK_S, trust_env=False) as client:
        try:
            response = client.post(f"{scheme}://{address}{RECIPE_PATH}", json=document)
        except (httpx.RemoteProtocolError, httpx.ReadError):
            if credentials is None and speaks_tls(address):
                raise without_identity(address) from None
            raise
        response.raise_for_status()
    try:
        found = response.json()
        recipe, boards = found["recipe"], found["boards"]
        if isinstance(recipe, str) and isinstance(boards, list) and all(isinstance(name, str) for name in boards):
            return Told(recipe, tuple(boards))
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise LinkError(f"{address} does not answer as a coordinator of this edgegossip does", gone=False)
