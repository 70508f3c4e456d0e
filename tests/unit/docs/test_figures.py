"""Every figure of the README is one of `docs/results/figures.toml`, and so is the page that it comes from."""

import re

import pytest

from benchmarks import figures

CITED = figures.read()


@pytest.mark.parametrize("page", CITED.lines)
def test_a_page_has_the_figures_of_the_file(page: str) -> None:
    text = (figures.ROOT / page).read_text()
    assert CITED.filled(page, text) == text


def test_another_figure_is_written_and_a_lost_line_is_named() -> None:
    (line, *_), page = CITED.lines["README.md"], (figures.ROOT / "README.md").read_text()
    changed = page.replace("| 12 | 6, 11 late", "| 12 | 9, 3.5 late")
    assert changed != page
    assert CITED.filled("README.md", changed) == page
    with pytest.raises(ValueError, match="found 0 times"):
        CITED.filled("README.md", page.replace("none late", ""))
    assert line.startswith("| 12 |")


def test_every_figure_is_cited_by_the_readme_and_by_the_page_of_its_run() -> None:
    named = {page: set(re.findall(r"\{(\w+)\}", " ".join(lines))) for page, lines in CITED.lines.items()}
    readme = named.pop("README.md")
    assert readme == set().union(*named.values()) == set(CITED.values)
    assert all((figures.ROOT / folder).is_dir() for run in CITED.runs for folder in run.measures)


def test_what_the_readme_says_that_it_saves_and_costs_has_no_other_figure() -> None:
    text = (figures.ROOT / "README.md").read_text()
    section = text.partition("## What it saves and costs")[2].partition("\n## ")[0]
    for line in CITED.lines["README.md"]:
        section = re.sub(figures.pattern(line), "", section)
    assert re.findall(r"\d+(?:\.\d+)? (?:ms|s|%|GPUs?)\b|^\| *\d.*", section, re.MULTILINE) == []
