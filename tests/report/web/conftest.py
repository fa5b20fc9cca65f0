"""One browser of each size for all tests of the page."""

import pytest

from tests.report.web.chromium import Chromium


@pytest.fixture(scope="session")
def desktop():
    with Chromium(1280, 900) as browser:
        yield browser


@pytest.fixture(scope="session")
def phone():
    with Chromium(360, 740, phone=True) as browser:
        yield browser
