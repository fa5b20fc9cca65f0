"""Why a stream ended, in a few words, from what gRPC and the operating system report about it."""

from __future__ import annotations

import errno
import os
import re

from edgegossip.mesh._grpc import grpc
from edgegossip.types import PeerError

_ERRNO = re.compile(r"(?:connect|recvmsg|sendmsg|read|write|system)\w*:? ?(?:error: )?([A-Z][A-Za-z ]+?) \(\d+\)")
_SIMPLE = (
    ("Connection refused", "connection refused"),
    ("Connection reset", "the connection was reset"),
    ("Broken pipe", "the connection was reset"),
    ("No route to host", "no route to host"),
    ("Network is unreachable", "the network is unreachable"),
    ("keepalive", "it does not answer"),
    ("ping timeout", "it does not answer"),
    ("Connection timed out", "it does not answer"),
    ("timed out", "it does not answer"),
    ("Timeout", "it does not answer"),
    ("Socket closed", "the connection was closed"),
    ("GOAWAY", "the connection was closed"),
    ("RST_STREAM", "the stream was closed"),
    ("Trying to connect an http1.x server", "what listens there is no edgegossip board"),
    ("FRAME_SIZE_ERROR", "what listens there is no edgegossip board"),
    ("Server preface", "what listens there is no edgegossip board"),
    ("settings frame", "what listens there is no edgegossip board"),
)
_AWAY = ("connection refused", "it does not answer", "no route to host", "host is down", "the network is unreachable")


class Unreachable(PeerError):
    """Nobody answers there now: worth trying again."""


def of_rpc(error: grpc.aio.AioRpcError) -> str:
    """A short cause, such as 'connection refused'."""
    details = error.details() or ""
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "what listens there is no edgegossip board"
    if words := _simple(details):
        return words
    found = _ERRNO.search(details)
    if found:
        return found.group(1).lower()
    return (details.splitlines() or [str(error.code())])[0][:200]


def nobody_there(cause: str) -> bool:
    """Whether it says no more than that the peer is away."""
    return cause.endswith(_AWAY)


def of_system(error: OSError) -> str:
    """The same of what the operating system reports."""
    number = error.errno or 0
    text = os.strerror(number) if number > 0 and number in errno.errorcode else error.strerror or ""
    return _simple(text) or text[:200].lower() or "it does not answer"


def _simple(text: str) -> str:
    """In words that a user knows; empty when we have none."""
    return next((words for pattern, words in _SIMPLE if pattern.lower() in text.lower()), "")
