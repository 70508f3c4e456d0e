"""The live page and the report of a real fleet, in a browser, and `ctl top` on a terminal."""

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import browser
import guard_rig as rig
import psutil
import pytest
from background import until
from browser import address_of, axe_violations
from ctl_fleet import CTL, plan
from guard_rig import Guarded, Load
from host_ports import free_ports
from playwright.sync_api import Browser
from terminal import INTERRUPT, on_terminal

from controlplane.runtime.fleet.history import History

pytestmark = pytest.mark.browser
PERCENT = 50.0
PLAN = plan(rig.partition("w", PERCENT, rate_rps=20.0, slo_ms=1000.0))
PATIENCE_MS = 30_000


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("live")) as made:
        made.apply(PLAN)
        made.await_guarded()
        yield made


@contextlib.contextmanager
def dashboard(fleet: Guarded) -> Iterator[tuple[str, psutil.Process]]:
    (port,) = free_ports(1)
    running = subprocess.Popen(
        [str(CTL), "dashboard", "--fleet", fleet.fleet, "--port", str(port), "--no-browser", "--json"],
        cwd=fleet.directory,
        env=fleet.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout is not None
        told = json.loads(running.stdout.readline())
        assert told["fleet"] == fleet.fleet
        yield told["address"], psutil.Process(running.pid)
    finally:
        running.terminate()
        assert running.wait(timeout=30) == 0
        assert running.stdout is not None
        running.stdout.close()


def test_a_redirect_appears_and_a_restart_of_the_controller_is_survived(
    fleet: Guarded, chromium: Browser
) -> None:
    with (
        Load(fleet.grpc, "w", 20.0, 0.003) as load,
        dashboard(fleet) as (address, _),
        browser.opened(chromium, address) as opened,
    ):
        page = opened.page
        load.await_answers(20)
        # Not `wait_for_function`, which evaluates text: the page's policy forbids that.
        page.locator("[data-workload] td:nth-child(6)", has_not_text="–").wait_for(timeout=PATIENCE_MS)
        assert page.inner_text("#state") == "Live"
        assert f"{PERCENT:g} %" in page.inner_text(".segments")
        page.fill("#search", "w")
        fleet.kill_controller()
        page.wait_for_selector("text=The fleet has no controller", timeout=PATIENCE_MS)
        fleet.ctl("redirect", "w")
        page.locator(".segments", has_text=f"{PERCENT + 10:g} %").wait_for(timeout=PATIENCE_MS)
        page.locator("#event-list li", has_text="redirect w").first.wait_for(timeout=PATIENCE_MS)
        fleet.start_controller()
        page.wait_for_selector("text=The fleet has no controller", state="detached", timeout=PATIENCE_MS)
        assert page.input_value("#search") == "w"
        assert {url.removeprefix(address) for url in opened.requests} == {"", "events"}
        assert opened.complaints == []
        assert axe_violations(page) == []


def test_the_page_is_served_under_loopback_names_only(fleet: Guarded) -> None:
    with dashboard(fleet) as (address, _):
        foreign = urllib.request.Request(address, headers={"Host": "example.com"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(foreign, timeout=30)


def test_the_report_has_the_record_and_the_events(fleet: Guarded, chromium: Browser) -> None:
    with Load(fleet.grpc, "w", 20.0, 0.003) as load:
        load.await_answers(20)
        history = History(fleet.files / "history.sqlite")
        until(lambda: history.minutes(0.0), 60.0, "a record")
    file = fleet.directory / "fleet.html"
    fleet.ctl("report", "-o", str(file))
    with browser.opened(chromium, address_of(file)) as opened:
        assert "minute" in opened.page.inner_text("#timeline-title ~ .charts figcaption")
        assert "apply" in opened.page.inner_text("#event-list")
        assert opened.requests == [address_of(file)]
        assert opened.complaints == []
        assert axe_violations(opened.page) == []


def test_top_shows_the_fleet_and_redirects_by_key(fleet: Guarded) -> None:
    began_s = time.time()
    with on_terminal([CTL, "top", "--fleet", fleet.fleet], fleet.environment) as terminal:
        terminal.await_text("1 workload, controller runs")
        terminal.type("r")
        terminal.await_text("Move w to its shadow, or back?")
        terminal.type("y")
        terminal.await_text("Redirected")
        fleet.await_event("redirect", since_s=began_s, says="by hand")
        terminal.type(INTERRUPT)
        assert terminal.ended() == 130
        assert terminal.text.endswith(
            "ctl: interrupted: a redirect that you asked for is done; nothing else was changed\n"
        )
        assert terminal.echoes()


def test_top_gives_the_terminal_back_after_sigterm(fleet: Guarded) -> None:
    with on_terminal([CTL, "top", "--fleet", fleet.fleet], fleet.environment) as terminal:
        terminal.await_text("controller runs")
        terminal.terminate()
        assert terminal.ended() == 143
        assert terminal.echoes()
