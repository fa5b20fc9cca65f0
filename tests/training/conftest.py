"""One torch thread, so that results repeat bit for bit."""

from tests import one_thread

_one_thread = one_thread.one_thread
