from collections.abc import Iterator

import browser
import pytest
from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if browser.CHROMIUM is None:
        pytest.skip(browser.NOT_RUN)
    with browser.browser() as running:
        yield running
