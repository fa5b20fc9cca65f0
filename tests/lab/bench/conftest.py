"""One torch thread, as in the training tests."""

from tests import one_thread

_one_thread = one_thread.one_thread
