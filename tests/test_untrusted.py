"""What strangers write is a number, or None; never an exception."""

import pytest

from edgegossip.untrusted import request_target, whole_number


@pytest.mark.parametrize("text", ["", "²", "٣", "-1", "+1", " 1", "1_0", "65536", "9" * 5000, "000080", "x"])
def test_what_is_no_number_is_none(text):
    assert whole_number(text, 65_535) is None


def test_numbers_up_to_the_most():
    assert [whole_number(text, 65_535) for text in ("0", "65535", "00080")] == [0, 65_535, 80]


def test_targets():
    assert request_target("//[") is None and request_target("http://[/") is None
    target = request_target("/data/0?a=1")
    assert target is not None and (target.path, target.query) == ("/data/0", "a=1")
