"""The tutorial runs as it stands, and the site builds without a warning."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tutorial

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
EXIT_CODE = re.compile(r"^exit code (\d+)$", re.MULTILINE)


def test_every_block_of_the_tutorial_runs_but_the_installation_which_the_wheels_test_runs(
    tmp_path: Path,
) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = []
    for block in tutorial.blocks():
        if block.kind == "yaml":
            (tmp_path / "shop.yaml").write_text(block.text)
            continue
        if block.command == tutorial.INSTALL:
            continue
        run = [sys.executable, "-c", block.text] if block.kind == "python" else ["bash", "-c", block.command]
        done = subprocess.run(
            run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        expected = EXIT_CODE.search(block.text)
        assert done.returncode == (int(expected[1]) if expected else 0), f"{run}: {done.stderr}"
        assert done.stdout, f"{run} shows nothing"
        ran.append(block.kind)
    assert (ran.count("console"), ran.count("python")) == (6, 1)


def test_the_site_builds_without_a_warning_and_no_link_leads_nowhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", ROOT / "docs", tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Trisect" in (tmp_path / "site" / "index.html").read_text()
    for page in sorted(path.stem for path in (ROOT / "docs").glob("*.md")):
        assert (tmp_path / "site" / f"{page}.html").exists()
