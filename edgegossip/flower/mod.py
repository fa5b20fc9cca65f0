"""`compression_mod(codec)`: a Flower ClientApp that receives models as frames and answers with compressed changes.

The app itself does not change: it finds plain arrays in the message and puts plain arrays into its reply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ArrayRecord, Context, Message, RecordDict

from edgegossip import codecs
from edgegossip.codecs.base import Codec, Ctx
from edgegossip.flower.payload import FRAME, Channel, frame_key
from edgegossip.flower.records import RecordLayout, is_packed, split_frame
from edgegossip.flower.strategy import META
from edgegossip.frame import Frame, Kind
from edgegossip.types import DecodeError, LocalError, Vec

Next = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Next], Message]


def compression_mod(codec: Codec[Any]) -> Mod:
    """A mod for `ClientApp(mods=[compression_mod(codec)])`; the server wraps its strategy in `compressed` with the same codec.

    Messages without a frame pass unchanged. A codec's state (error memory and the like) is kept in this mod for as long as
    its process lives, one a run and node. The mod raises PeerError when the server sent something bad and LocalError when
    the app returned other arrays than it was given; Flower reports either to the server as a failed reply.
    """
    state: dict[tuple[int, int], tuple[Any, int]] = {}  # (run, node) -> codec state, frames sent

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        if not message.has_content() or not any(is_packed(r) for r in message.content.array_records.values()):
            return call_next(message, context)
        opened = _Opened.of(message)
        message.content = opened.content
        reply = call_next(message, context)
        if not reply.has_content() or not reply.content.array_records:
            return reply
        who = (message.metadata.run_id, message.metadata.dst_node_id)
        channel = Channel.of(opened.layout.layout, opened.frame.run_id, codec)
        before, sent = state.get(who) or (codec.init(channel.layout), 0)
        reply.content, after = _pack(reply, opened, channel, before, sent + 1)
        state[who] = (after, sent + 1)
        return reply

    return mod


class _Opened:
    """A message as the app sees it, and what is needed to answer."""

    def __init__(self, content: RecordDict, layout: RecordLayout, frame: Frame, x: Vec) -> None:
        self.content, self.layout, self.frame, self.x = content, layout, frame, x

    @classmethod
    def of(cls, message: Message) -> _Opened:
        meta: Mapping[str, Any] = message.content.config_records.get(META, {})
        text, run_id = meta.get("layout"), meta.get("run-id")
        if not isinstance(text, str) or not isinstance(run_id, bytes):
            raise DecodeError(f"the message holds a frame but no {META!r} record that describes it")
        layout = RecordLayout.from_json(text)
        channel = Channel.of(layout.layout, run_id, codecs.get("fp32"))
        content = RecordDict({k: v for k, v in message.content.items() if k != META})
        names = [k for k, r in message.content.array_records.items() if is_packed(r)]
        if len(names) != 1:
            raise DecodeError(f"the message holds {len(names)} frames instead of one")
        data, rest = split_frame(message.content.array_records[names[0]])
        frame, x = channel.open(data, Kind.MODEL, None)
        content[names[0]] = layout.restore(x, rest)
        return cls(content, layout, frame, x)


def _pack(reply: Message, opened: _Opened, channel: Channel, state: Any, sequence: int) -> tuple[RecordDict, Any]:
    records = reply.content.array_records
    if len(records) != 1:
        raise LocalError(f"the app's reply has {len(records)} array records; a compressed reply has exactly one")
    name, record = next(iter(records.items()))
    y, rest = opened.layout.flatten(record)
    key = frame_key(channel.run_id, str(reply.metadata.src_node_id), opened.frame.round)
    ctx = Ctx(key=key, round=opened.frame.round)
    packed, state = channel.pack(Kind.UPDATE, y - opened.x, state, ctx, sequence)
    content = RecordDict(dict(reply.content))
    content[name] = ArrayRecord({FRAME: packed.array, **rest})
    return content, state
