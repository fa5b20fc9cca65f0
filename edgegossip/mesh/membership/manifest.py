"""The manifest: what a run is, in one document that its founder signs and that members pass on.

JSON with these keys; the bytes themselves are what is signed, so nobody writes them anew:

    edgegossip     1, the format
    version        1, 2, ...: of this run's manifest
    run_id         32 hexadecimal digits
    founder        the member or operator that made the run
    members        their names in order; a member's place decides its share of the data and its
                   neighbours
    topology       SHA-256 of everybody's neighbours and weights as the founder computed them,
                   hexadecimal
    topology_file  the text of the file for gossip.topology = file, else empty
    recipe         the resolved recipe as TOML
    instance       hexadecimal digits that the founder drew: which of several runs of the same
                   recipe and members this is; may lack

Members compare a hash of all but the last two. For the recipe the run id stands: what in it is each
board's own matter (evaluations, checkpoints, ...) is the founder's suggestion and may change when
the founder is started again. The instance only tells a board whether its checkpoints are of this
run; a founder that has lost its disk draws a new one and is let in as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from edgegossip.types import DecodeError, NodeId, PeerError

if TYPE_CHECKING:
    from edgegossip.security.identity import Identity

FORMAT = 1
MAX_BYTES = 512 << 10
MAX_MEMBERS = 64
_DOMAIN = b"edgegossip manifest 1\0"
_RUN_ID, _INSTANCE = re.compile("[0-9a-f]{32}"), re.compile("[0-9a-f]{0,32}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes one run. `content` is the document, `signature` the founder's (see `verify`) or
    empty."""

    content: bytes
    signature: bytes
    version: int
    run_id: bytes  # 16 bytes
    founder: NodeId
    members: tuple[NodeId, ...]
    topology: str
    topology_file: str
    recipe: str
    instance: str  # empty: not known
    hash: int  # 64 bits that members compare in every message

    def signed_by(self, signer: Identity) -> Manifest:
        """Return the same manifest with a signature of this member."""
        return parse(self.content, signer.sign(_DOMAIN + self.content))

    def verify(self, signer: Identity) -> NodeId:
        """Return who signed it: the founding board, an operator of the fleet, or a member that
        found the founder revoked and signed in its place (each of them could have founded the run).
        Raises PeerError."""
        signed = _DOMAIN + self.content
        try:
            name = signer.verify("board", signed, self.signature)
        except PeerError as not_a_board:
            try:
                return signer.verify("operator", signed, self.signature)
            except PeerError:
                raise PeerError(f"the run's manifest bears {not_a_board}") from None
        if name not in self.members:
            raise PeerError(f"the run's manifest bears a signature of {name}, who is no member of it")
        return name


def make(
    run_id: bytes,
    founder: NodeId,
    members: Sequence[NodeId],
    topology: str,
    recipe: str,
    topology_file: str = "",
    instance: str = "",
) -> Manifest:
    """Make a new run's manifest, not signed yet. Two boards that make it from the same make the
    same bytes."""
    document = {
        "edgegossip": FORMAT,
        "version": 1,
        "run_id": run_id.hex(),
        "founder": founder,
        "members": list(members),
        "topology": topology,
        "topology_file": topology_file,
        "recipe": recipe,
        **({"instance": instance} if instance else {}),
    }
    return parse(json.dumps(document, separators=(",", ":"), sort_keys=True).encode(), b"")


def parse(content: bytes, signature: bytes) -> Manifest:
    """Read a manifest, and check its form and bounds, not the signature. Raises DecodeError."""
    if len(content) > MAX_BYTES or len(signature) > MAX_BYTES:
        raise DecodeError(f"a manifest of more than {MAX_BYTES} bytes")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DecodeError("a manifest that is not JSON") from error
    if not isinstance(document, dict) or document.get("edgegossip") != FORMAT:
        raise DecodeError("a manifest of another format: install the same edgegossip on all boards")
    get: Any = document.get
    members, version, founder, instance = get("members"), get("version"), get("founder"), get("instance", "")
    texts = {key: get(key) for key in ("topology", "topology_file", "recipe")}
    names = [*members, founder] if isinstance(members, list) else []
    run_id = str(get("run_id"))
    if (
        not all(map(_is_name, names))
        or not 2 <= len({*names[:-1]}) == len(names) - 1 <= MAX_MEMBERS
        or not (type(version) is int and 0 < version < 2**31)
        or not _RUN_ID.fullmatch(run_id)
        or not all(isinstance(text, str) for text in texts.values())
        or not is_instance(instance)
    ):
        raise DecodeError("a manifest that lacks something, or has it wrong")
    shared = {key: value for key, value in document.items() if key not in ("recipe", "instance")}
    digest = sha256(json.dumps(shared, separators=(",", ":"), sort_keys=True).encode()).digest()
    return Manifest(
        content=content,
        signature=signature,
        version=version,
        run_id=bytes.fromhex(run_id),
        founder=founder,
        members=tuple(members),
        instance=instance,
        hash=int.from_bytes(digest[:8], "little"),
        **texts,
    )


def is_instance(value: object) -> bool:
    """Return whether this can be the instance of a manifest: up to 32 hexadecimal digits."""
    return isinstance(value, str) and _INSTANCE.fullmatch(value) is not None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 64 and value.isprintable()
