import pytest

from benchmarks.plans import papers


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_figures_on_the_page_of_papers_are_those_of_the_code() -> None:
    assert papers.main(["--short"]) == 0


def test_a_figure_that_moved_by_more_than_its_spread_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = papers.rows()
    (row,) = (r for r in rows if r.name == "iGniter Fig 14, igniter: GPUs")
    monkeypatch.setattr(papers, "SECTIONS", {"placed.": lambda: {r.name: r.ours for r in rows}})
    monkeypatch.setattr(papers, "rows", lambda: [row])
    assert papers.main(["--short"]) == 1, "of other figures there is no row"
    monkeypatch.setattr(papers, "SECTIONS", {"placed.": lambda: {row.name: row.ours}})
    assert papers.main(["--short"]) == 0
    monkeypatch.setattr(papers, "SECTIONS", {"placed.": lambda: {row.name: row.ours + 1}})
    assert papers.main(["--short"]) == 1
