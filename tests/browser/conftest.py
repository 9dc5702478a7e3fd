"""A headless Chromium that opens pages from files, and notes what they ask for and complain of."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.formats.html import html

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A page in the browser: playwright's ``page``, what its console has, and all addresses that it asked for."""

    page: Any
    file: Path
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Chromium, as CHROMIUM names it or as it is found; without it only those fail who ask for these tests alone."""
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if path is None or sync_playwright is None:
        lacks = "Chromium: name it with CHROMIUM=FILE" if path is None else "playwright: pip install -e '.[browser]'"
        (pytest.fail if request.config.option.markexpr == "browser" else pytest.skip)(f"there is no {lacks}")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(QUIET))
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens the page of a document, or HTML as it is; further arguments are of the browser's context."""
    contexts: list[Any] = []

    def opened(shown: Run | str, **context: Any) -> Opened:
        file = tmp_path / f"page{len(contexts)}.html"
        file.write_text(shown if isinstance(shown, str) else html(shown), encoding="utf-8")
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context}))
        found = Opened(page=contexts[-1].new_page(), file=file)
        found.page.on("console", lambda message: found.complaints.append(message.text))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.on("request", lambda asked: found.requests.append(asked.url))
        found.page.goto(file.as_uri())
        return found

    yield opened
    for context in contexts:
        context.close()
