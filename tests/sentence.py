"""What is told to a person when something is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgegossip.types import EdgegossipError


def is_sentence(error: BaseException) -> bool:
    """Whether it is one line of words, and no dump of code."""
    text = str(error)
    return bool(text.strip()) and len(text.splitlines()) == 1 and "Traceback" not in text


@contextmanager
def done_or_told(kind: type[EdgegossipError] = EdgegossipError) -> Iterator[None]:
    """Let pass what is done, or refused in one sentence."""
    try:
        yield
    except kind as error:
        if not is_sentence(error):
            raise AssertionError(f"no sentence: {error}") from error
