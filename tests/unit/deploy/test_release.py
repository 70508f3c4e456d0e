"""A release's files besides the wheel, which `tests/e2e/test_wheel.py` installs."""

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

from deploy import release

EPOCH = 1_700_000_000


def test_equal_commits_give_equal_files_whose_sums_are_given(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trisect.whl").write_bytes(b"a wheel")
        release.additions(tmp_path / name, EPOCH)
    made = {file.name: file.read_bytes() for file in (tmp_path / "one").iterdir()}
    assert made == {file.name: file.read_bytes() for file in (tmp_path / "other").iterdir()}
    lines = made.pop("SHA256SUMS").decode().splitlines()
    assert [line.split() for line in lines] == [
        [hashlib.sha256(content).hexdigest(), name] for name, content in sorted(made.items())
    ]
    assert {name.rpartition(".")[2] for name in made} == {"whl", "tgz", "json"}


def test_the_bill_names_what_the_wheel_installs_at_the_installed_versions() -> None:
    bill = json.loads(json.dumps(release.materials(EPOCH)))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/trisect@{version('trisect')}"
    scopes = {part["purl"]: part["scope"] for part in bill["components"]}
    of = {
        name: scopes.get(f"pkg:pypi/{name}@{version(name)}")
        for name in ("numpy", "certifi", "lightkube", "pytest")
    }
    assert of == {"numpy": "required", "certifi": "required", "lightkube": "optional", "pytest": None}
