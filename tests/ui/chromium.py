"""A real browser on the page: Chromium, and all that it complains of."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
PATIENCE_MS = 120_000  # of a busy machine
DESKTOP, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}


def installed() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Browser]:
    path = installed()
    if path is None:
        pytest.skip("no Chromium is installed here: apt-get install chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=list(FLAGS), timeout=PATIENCE_MS)
        yield found
        found.close()


class PageUnderTest:
    """A page of the server at `address`, with the console's errors in `complaints`."""

    def __init__(self, browser: Browser, address: str, **context: Any) -> None:
        self.address = address.rstrip("/")
        context.setdefault("viewport", DESKTOP)
        self.context = browser.new_context(**context)
        self.context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on(
            "console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))

    def open(self, route: str = "") -> Page:
        """Open an address of the page as from a link that somebody sent."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.address}/#/{route}")
        self.page.wait_for_selector("main h1, main .problem")
        return self.page

    def faults(self) -> list[str]:
        """What axe finds to be serious or critical."""
        found = Axe().run(self.page).response["violations"]
        return [
            f"{one['id']}: {one['help']}: {node['html'][:200]} {node.get('failureSummary', '')}"
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"][:3]
        ]

    @property
    def overflows(self) -> bool:
        """Whether the page must be moved sideways to be read."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))
