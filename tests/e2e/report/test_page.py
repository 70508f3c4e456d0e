"""The report of a plan, opened in a browser."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import browser
import planning
import pytest
from browser import Opened, address_of, axe_violations
from playwright.sync_api import Browser, Page

from controlplane.domain.plan import Plan, PlannedGpu, Rule
from controlplane.planning.explain.explain import explain_queues
from controlplane.report.page import page as page_of
from controlplane.report.page.document import plan_document

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planning.planned("joint", planning.published(12), rule=Rule.P99, latency="ours")


@pytest.fixture(scope="module")
def report(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    document = plan_document(plan, explain_queues(plan, {"v100": planning.v100("ours")}))
    file = tmp_path_factory.mktemp("report") / "plan.html"
    file.write_text(page_of("Plan", document))
    return file


@pytest.fixture
def opened(chromium: Browser, report: Path) -> Iterator[Opened]:
    with browser.opened(chromium, address_of(report)) as found:
        yield found


def rows(page: Page) -> list[list[str]]:
    return page.eval_on_selector_all(
        "[data-workload]", "rows => rows.map(r => [...r.children].map(c => c.innerText.trim()))"
    )


def names(page: Page) -> list[str]:
    return page.eval_on_selector_all("[data-workload]", "rows => rows.map(r => r.dataset.workload)")


def test_figures_are_those_of_the_plan(opened: Opened, plan: Plan) -> None:
    shown = {row[0].removeprefix("▸ "): row for row in rows(opened.page)}
    assert len(shown) == 12
    for _, _, placed in plan.placements():
        predicted = placed.predicted
        assert predicted.p99_ms is not None
        row = shown[placed.name]
        assert row[1] == placed.model
        assert float(row[3]) == placed.slo_ms
        assert float(row[4]) == pytest.approx(predicted.p99_ms, abs=0.051)
        assert row[6] == f"{float(f'{100 * (1 - predicted.p99_ms / placed.slo_ms):.2g}'):g} %"
    blocks = opened.page.eval_on_selector_all(".segments li[title]", "all => all.map(one => one.title)")
    for _, partition in plan.partitions():
        assert any(f"{partition.percent:g} % ({partition.models[0].model}" in block for block in blocks)
    assert "12 workloads run on 7 GPUs (v100)" in opened.page.inner_text(".verdict")
    first, *_ = rows(opened.page)
    tightest = f"The least margin is that of {first[0].removeprefix('▸ ')}: {first[6]}."
    assert tightest in opened.page.inner_text(".verdict")


def test_a_block_names_all_its_workloads(opened: Opened, plan: Plan) -> None:
    blocks = opened.page.eval_on_selector_all(".segments li[title]", "all => all.map(one => one.title)")
    for _, partition in plan.partitions():
        assert any(block.startswith(", ".join(w.name for w in partition.workloads) + ":") for block in blocks)


def test_a_time_just_within_its_limit_is_not_shown_as_the_limit(
    chromium: Browser, plan: Plan, tmp_path: Path
) -> None:
    document = plan_document(plan)
    document["workloads"][0] |= {"value_ms": 24.98, "limit_ms": 25.0}
    file = tmp_path / "plan.html"
    file.write_text(page_of("Plan", document))
    with browser.opened(chromium, address_of(file)) as found:
        (row,) = (r for r in rows(found.page) if r[0].endswith(f" {document['workloads'][0]['name']}"))
        assert (row[3], row[4], row[6]) == ("25", "24.98", "0.08 %")


def test_charts_have_round_numbers_beside_their_lines(chromium: Browser, tmp_path: Path) -> None:
    points = [
        {"at_s": 60.0 * n, "p99_ms": 4.4 * n, "requests": 9, "failed": 0, "percent": 20} for n in range(5)
    ]
    line = {"endpoint": "shop", "slo_ms": None, "partitions": ["P"], "points": points}
    file = tmp_path / "fleet.html"
    file.write_text(page_of("Fleet", {"title": "Fleet", "timeline": [line], "events": []}))
    with browser.opened(chromium, address_of(file)) as found:
        texts = found.page.eval_on_selector_all(
            "svg:first-of-type text", "all => all.map(t => t.textContent)"
        )
    assert texts[:4] == ["0", "5", "10", "15"]


def test_what_a_narrow_screen_leaves_out_is_among_the_reasons(chromium: Browser, report: Path) -> None:
    with browser.opened(chromium, address_of(report), width=390) as found:
        assert not found.page.get_by_text("Utilisation is its rate").is_visible()
        found.page.get_by_role("button", name="W7").click()
        told = found.page.inner_text("tr.details")
        assert "Model vgg19, planned for 300 inferences/s, 65 % of what its servers can answer" in told


def test_nothing_is_loaded_and_nothing_complains(opened: Opened, report: Path) -> None:
    opened.page.click("#workloads-title")
    assert opened.requests == [address_of(report)]
    assert opened.complaints == []


def test_columns_sort_both_ways(opened: Opened) -> None:
    page = opened.page
    page.get_by_role("button", name="SLO ms").click()
    limits = [float(row[3]) for row in rows(page)]
    assert limits == sorted(limits)
    page.get_by_role("button", name="SLO ms").click()
    assert [float(row[3]) for row in rows(page)] == sorted(limits, reverse=True)
    assert page.get_attribute("th:has-text('SLO ms')", "aria-sort") == "descending"


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_a_fleets_table_fits_and_has_its_idle_workload_last(
    chromium: Browser, plan: Plan, tmp_path: Path, width: int
) -> None:
    basis = {"kind": "observed", "measure": "P99", "limit": "SLO", "source": "the last minute"}
    document = plan_document(plan) | {"title": "Fleet", "basis": basis, "seen": True, "events": []}
    for one in document["workloads"]:
        one |= {"seen_rps": one["rate_rps"], "busy": 0.5}
    idle = document["workloads"][3]
    idle |= dict.fromkeys(("value_ms", "seen_rps", "busy")) | {"holds": False}
    file = tmp_path / "fleet.html"
    file.write_text(page_of("Fleet", document))
    with browser.opened(chromium, address_of(file), width=width) as found:
        assert names(found.page)[-1] == idle["name"]
        found.page.get_by_role("button", name="Margin").click()
        assert names(found.page)[-1] == idle["name"]
        over = "all => all.map(one => one.scrollWidth - one.clientWidth)"
        assert found.page.eval_on_selector_all(".scroll, html", over) == [0, 0]


def test_search_and_filter_leave_what_fits(opened: Opened) -> None:
    page = opened.page
    page.fill("#search", "ssd v100-5")
    assert names(page) == ["W12"]
    assert page.inner_text("[role=status]") == "1 of 12 workloads shown"
    assert page.locator(".segments li.dim").count() > 0
    page.fill("#search", "")
    page.select_option("#model", "alexnet")
    assert sorted(names(page)) == ["W1", "W2", "W3"]
    page.select_option("#model", "")
    page.check("#late")
    assert names(page) == []


def test_a_name_opens_its_reasons_by_keyboard(opened: Opened) -> None:
    page = opened.page
    button = page.get_by_role("button", name="W7")
    button.focus()
    page.keyboard.press("Enter")
    told = page.inner_text("tr.details")
    assert "Why this share and batch" in told
    assert "share 90 %" in told
    assert "next smaller share" in told
    assert "next larger batch\t90 %\t4\t19.2" in told
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    page.keyboard.press("Enter")
    assert page.locator("tr.details").count() == 0


def compared(name: str, gpus: int, *late: str) -> dict[str, object]:
    truths = {"measured": {"late": list(late), "late_percent": 0.0, "power_w": None}}
    return {
        "name": name,
        "gpus": gpus,
        "cost_per_hour": 3.0 * gpus,
        "planning_ms": 10.0,
        "infeasible": [],
        "predicted_late": [],
        "utilisation": None,
        "truths": truths,
    }


@pytest.mark.parametrize(
    ("strategies", "says"),
    [
        (
            [compared("cheap", 1, "a"), compared("safe", 2), compared("dear", 3)],
            "safe needs 2 GPUs and keeps every limit; cheap needs 1 GPU and has 1 of 2 workloads late",
        ),
        (
            [compared("cheap", 1, "a", "b"), compared("better", 2, "a")],
            "no plan keeps every limit: better needs 2 GPUs and has the fewest, 1 of 2 workloads late",
        ),
        ([compared("cheap", 1, "a", "b")], "every plan leaves all workloads late or not served."),
    ],
)
def test_a_comparison_says_its_outcome(
    strategies: list[dict[str, object]], says: str, chromium: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "compared.html"
    document = {
        "title": "Compared",
        "workloads": 2,
        "noun": "GPU",
        "prices": {"v100": 3.0},
        "seconds": 10,
        "refused": [],
    }
    truth = {"name": "measured", "title": "As measured", "meaning": "as it was"}
    file.write_text(page_of("Compared", document | {"truths": [truth], "strategies": strategies}))
    with browser.opened(chromium, address_of(file), width=390) as found:
        assert says in found.page.inner_text(".verdict")
        assert "price per hour: v100 3.00" in found.page.inner_text("caption")
        assert found.complaints == []
        assert axe_violations(found.page) == []
        # On a narrow screen the late workloads are in view.
        late = found.page.get_by_role("columnheader", name="Late: as measured").bounding_box()
        assert late is not None
        assert late["x"] + late["width"] < 390


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible_and_fits(chromium: Browser, report: Path, width: int, scheme: str) -> None:
    with browser.opened(chromium, address_of(report), width=width, scheme=scheme) as found:
        found.page.get_by_role("button", name="W7").click()
        assert axe_violations(found.page) == []
        assert found.page.evaluate("document.documentElement.scrollWidth") == width
        # The last column says whether the SLO holds: it must be seen without scrolling the table.
        table = found.page.locator(".scroll").first
        assert table.evaluate("found => found.scrollWidth <= found.clientWidth")
        assert found.page.inner_text("[title^='W7: 90 %']").startswith("W7\n90 %")


def test_a_rule_about_executions_is_not_shown_as_a_promise_of_the_p99(
    chromium: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "igniter.html"
    file.write_text(page_of("Plan", plan_document(planning.planned("igniter", planning.published(12)))))
    with browser.opened(chromium, address_of(file)) as found:
        verdict = found.page.inner_text(".verdict")
        assert "nothing about waiting in queues" in verdict
        assert found.page.locator(".verdict .good").count() == 0
        assert "7.5" in {row[3] for row in rows(found.page)}


def test_a_thousand_workloads_are_searched(chromium: Browser, plan: Plan, tmp_path: Path) -> None:
    def copy(gpu: PlannedGpu, n: int) -> PlannedGpu:
        parts = tuple(
            replace(
                p,
                id=f"{p.id}x{n}",
                workloads=tuple(
                    replace(w, name=f"{w.name}x{n}", endpoint=f"{w.endpoint}x{n}") for w in p.workloads
                ),
            )
            for p in gpu.partitions
        )
        return replace(gpu, id=f"{gpu.id}x{n}", partitions=parts)

    many = replace(plan, gpus=tuple(copy(gpu, n) for n in range(84) for gpu in plan.gpus))
    file = tmp_path / "many.html"
    file.write_text(page_of("Plan", plan_document(many)))
    with browser.opened(chromium, address_of(file)) as found:
        assert len(names(found.page)) == 1008
        found.page.fill("#search", "W8x83")
        assert names(found.page) == ["W8x83"]
