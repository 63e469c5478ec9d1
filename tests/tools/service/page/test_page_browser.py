"""The page in a browser: every control is used, and random clicks leave no error.

Skipped without Playwright's Python package or Chromium (Debian: chromium).
`UGPU_CLICKS=2000` clicks for about ten minutes.
"""

from __future__ import annotations

import logging
import os
import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")
from tests.support import waiting
from tests.support.service.page import Served
from ugpu.hcq.disk.bundle import Evidence, write
from ugpu.hcq.errors import ChipError
from ugpu.tools.service.daemon.cards.owned import Owned
from ugpu.tools.service.daemon.clients.leases import State

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
CLICKS = int(os.environ.get("UGPU_CLICKS", "30"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(CLICKS + 300),
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not here"),
]
EXPECTED = ("400", "401", "403", "409")  # answers that the page has words for


@pytest.fixture
def served() -> Iterator[Served]:
    logging.getLogger("ugpu.tools.service.daemon").setLevel(logging.INFO)
    with tempfile.TemporaryDirectory(prefix="ugpud-") as folder:
        (Path(folder) / "crashes").mkdir()
        write(Path(folder) / "crashes", "cpu#0", ChipError("<b>stuck</b>", unit="SMU"), Evidence())
        found = Served(Path(folder), f'verdicts = "{folder}/ci.sqlite"', count=3)
        yield found
        found.close()
    logging.getLogger("ugpu.tools.service.daemon").setLevel(logging.NOTSET)


class Errors(list[str]):
    """What went wrong in a page."""

    def follow(self, page: Any) -> None:
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("console", self._said)

    def _said(self, message: Any) -> None:
        if message.type == "error" and not any(
            f"status of {code}" in message.text for code in EXPECTED
        ):
            self.append(message.text)


@pytest.fixture
def errors() -> Errors:
    return Errors()


@pytest.fixture
def page(served: Served, errors: Errors) -> Iterator[Any]:
    with playwright.sync_playwright() as api:
        home = str(served.running.settings.socket.parent)
        folders = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), home)
        browser = api.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], env={**os.environ, **folders}
        )
        made = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
        made.set_default_timeout(60_000)
        errors.follow(made)
        made.goto(served.page.address)
        yield made
        browser.close()


def enter(page: Any, token: str) -> None:
    page.fill("#token", token)
    page.press("#token", "Enter")
    page.wait_for_selector(".card")


def test_a_card_at_rest_says_so(
    served: Served, page: Any, errors: Errors, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(page, served.token("observe"))
    page.wait_for_selector(".card .state:text-is('ready')")
    with monkeypatch.context() as patched:
        patched.setattr(Owned, "resting", property(lambda owned: owned.name == "cpu#1"))
        page.wait_for_selector(".card .state:text-is('ready, resting')")
        assert page.locator(".state:text-is('ready, resting')").count() == 1
    page.wait_for_selector(".card .state:text-is('ready, resting')", state="detached")
    assert errors == []


def test_every_control(served: Served, page: Any, errors: Errors) -> None:
    page.wait_for_selector("#token:visible")
    page.fill("#token", "wrong")
    page.press("#token", "Enter")
    page.wait_for_selector("#login-error:not(:empty)")
    enter(page, served.token("admin"))
    assert page.locator(".card").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "fits a phone"

    page.click("text=cpu#1")
    page.wait_for_selector("#view-facts td:nth-child(2)")
    page.click("#view-actions >> text=Quarantine")
    page.fill("#ask-reason", "<i>fan</i>")
    page.press("#ask-reason", "Enter")
    page.wait_for_selector("#view-state:has-text('<i>fan</i>')")
    assert page.locator("#view i").count() == 0, "text must not be interpreted as markup"
    page.click("#view-actions >> text=Try again")
    page.click("#ask-no")
    page.click("#view-actions >> text=Try again")
    page.click("#ask-yes")
    page.wait_for_selector("#view-state:text-is('ready')")
    page.click("#view-actions >> text=Reset")
    page.click("#ask-yes")
    page.click("#view-actions >> text=Refresh")
    page.keyboard.press("Escape")
    page.wait_for_selector("#view", state="hidden")

    with served.running.lease("cpu#2"):
        page.click("#leases >> text=End")
        page.click("#ask-yes")
        page.wait_for_selector("#leases tr", state="detached")
    page.wait_for_selector("#events .error .kind")
    page.select_option("#level", "error")
    page.wait_for_selector("#events .info", state="hidden")
    page.click("#bundles-part summary")
    page.wait_for_selector("#bundles td:has-text('<b>stuck</b>')")
    with page.expect_download() as found:
        page.click("#bundles a >> nth=0")
    assert found.value.suggested_filename.endswith(".crash.zip")
    page.click("#verdicts-part summary")
    page.wait_for_selector("#verdicts td")
    page.click("#leave")
    page.wait_for_selector("#token:visible")
    assert not errors


STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def test_plots_begin_with_what_the_server_has(served: Served, page: Any, errors: Errors) -> None:
    token = served.token("observe")
    waiting.until(
        lambda: len(served.ask("GET", "/api/history", token=token).body["cpu#1"]["times"]) > 1
    )
    with page.expect_response("**/api/history"):
        enter(page, token)
    page.wait_for_function("document.querySelector('.plot .line')?.getAttribute('d').includes('L')")
    plot = page.locator(".card >> nth=1 >> .plot").first
    assert plot.locator("figcaption").text_content().startswith("Memory used")
    assert plot.locator(".low").text_content() == "0 B"
    ends = plot.locator(".times span").all_text_contents()
    assert len(ends) == 3 and all(re.fullmatch(r"\d\d:\d\d", each) for each in ends)
    assert not errors


def test_search_and_device_filter(served: Served, page: Any, errors: Errors) -> None:
    token = served.token("admin")
    enter(page, token)
    for number in (0, 2):
        path = f"/api/cards/cpu%23{number}/quarantine"
        assert served.ask("POST", path, {"reason": "dust"}, token).status == 200
        page.wait_for_selector(f"#events li[data-device='cpu#{number}']:has-text('dust')")
    page.fill("#search", "cpu#2 dust")
    page.wait_for_function("document.querySelectorAll('.card').length === 1")
    page.wait_for_selector("#events li[data-device='cpu#0']", state="hidden")
    assert page.locator("#events li[data-device='cpu#2']:visible").count() > 0
    page.fill("#search", "nothing is called so")
    page.wait_for_selector("#no-cards:visible")
    page.fill("#search", "")
    page.select_option("#device", "cpu#0")
    page.wait_for_function("document.querySelectorAll('.card').length === 1")
    with served.running.lease("cpu#1"):
        page.wait_for_selector("#summary:has-text('leased')")
        assert page.locator("#leases tr").count() == 0
        page.select_option("#device", "")
        page.wait_for_selector("#leases tr")
    times = page.locator("#events time").all_text_contents()
    assert times and all(STAMP.fullmatch(each) for each in times)
    assert not errors


def test_bundles_are_linked_from_their_card(served: Served, page: Any, errors: Errors) -> None:
    enter(page, served.token("admin"))
    page.click(".evidence button")
    assert page.text_content("#view-name") == "cpu#0"
    assert page.locator("#view-bundles a").count() == 1
    assert page.locator(".evidence button").count() == 1, "the other cards have none"
    assert page.locator("#view-actions .apart button").count() == 3
    assert page.locator("#view-actions > :not(.apart) button").all_text_contents() == ["Refresh"]
    assert not errors


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_phone_shows_all_of_a_lease(
    served: Served, page: Any, errors: Errors, scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_selector("#token:visible")
    page.fill("#token", "wrong")
    page.press("#token", "Enter")
    page.wait_for_selector("#login-error:visible")
    style = "getComputedStyle(document.querySelector('#login-error'))"
    assert page.evaluate(f"{style}.borderTopStyle") == "solid"
    assert page.get_attribute("#token", "aria-invalid") == "true"
    enter(page, served.token("admin"))
    with served.running.lease("cpu#2"):
        page.wait_for_selector("#leases tr")
        for cell in ("[data-name=Held]", "[data-name=Left]", "button"):
            box = page.locator(f"#leases {cell}").bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= 360, cell
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert not errors


def test_focus_stays_while_values_change(served: Served, page: Any, errors: Errors) -> None:
    enter(page, served.token("observe"))
    page.focus("text=cpu#1")
    with served.running.lease("cpu#0"):
        page.wait_for_selector(".card.leased")
        assert page.evaluate("document.activeElement.textContent") == "cpu#1"
    page.wait_for_selector(".card.leased", state="detached")
    assert page.evaluate("document.activeElement.textContent") == "cpu#1"
    page.keyboard.press("Enter")
    page.wait_for_selector("#view[open]")
    assert page.locator("#view-actions button").count() == 1, "no admin"
    assert not errors


def test_a_daemon_that_goes_away_and_comes_back(served: Served, page: Any, errors: Errors) -> None:
    enter(page, served.token("observe"))
    served.daemon.tokens.revoke("observe-*")
    page.wait_for_selector("#token:visible")
    assert page.text_content("#login-error")
    assert not errors


def test_random_clicks(served: Served, page: Any, errors: Errors) -> None:
    token, draw = served.token("admin"), random.Random(7)
    enter(page, token)
    for clicks in range(CLICKS):
        if page.locator("#token:visible").count():
            enter(page, token)
        controls = page.locator(
            "button:visible:enabled, summary:visible, select:visible, a:visible"
        )
        one = controls.nth(draw.randrange(controls.count()))
        try:
            one.click(timeout=500)
        except playwright.Error:
            page.keyboard.press("Escape")  # behind a dialog, or gone meanwhile
        if draw.random() < 0.2:
            page.keyboard.press(draw.choice(["Tab", "Enter", "Escape", "Space"]))
        assert not errors, f"after {clicks} clicks"
    until_quiet(served)


def until_quiet(served: Served) -> None:
    with served.daemon._tick:
        while any(each.card.state is State.RECOVERING for each in served.daemon.owned):
            assert served.daemon._tick.wait(60)
