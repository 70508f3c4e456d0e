"""Debian's chromium, without a display, for pages that are opened as a person would."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium")
NOT_RUN = "BROWSER TESTS NOT RUN: there is no chromium; `make test-packages` installs it where it may"


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start chromium. As root it cannot use its sandbox; it opens this project's own pages only."""
    with sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield running
        finally:
            running.close()


@dataclass
class Opened:
    """A page, what it requested and what it complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@contextlib.contextmanager
def opened(running: Browser, address: str, *, width: int = 1280, scheme: str = "light") -> Iterator[Opened]:
    """Open an address in a window of its own."""
    page = running.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    found = Opened(page)
    page.on("request", lambda request: found.requests.append(request.url))
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    page.on(
        "console",
        lambda message: (
            found.complaints.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    try:
        page.goto(address)
        yield found
    finally:
        page.close()


def address_of(file: Path) -> str:
    return file.resolve().as_uri()


def axe_violations(page: Page) -> list[str]:
    """What axe-core finds wrong for keyboards and screen readers, a line each."""
    found = Axe().run(page).response["violations"]
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found]
