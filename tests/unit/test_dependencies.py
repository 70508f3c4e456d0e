"""What the product imports is what the package declares."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = {"controlplane", "launchers"}


def imported() -> set[str]:
    """The other projects' packages that the product names in an import, at any depth of a module."""
    found: set[str] = set()
    for path in (file for ours in OURS for file in (ROOT / ours).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
                found.add(node.module)
    return {name.partition(".")[0] for name in found} - OURS - set(sys.stdlib_module_names)


def declared() -> set[str]:
    """The names of the dependencies and extras, as registries spell them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    lines = [line for group in groups for line in group]
    return {_spelt(re.split(r"[\[<>=~!; ]", line, maxsplit=1)[0]) for line in lines}


def _spelt(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_import_is_declared() -> None:
    distributions, known = packages_distributions(), declared()
    found = imported()
    assert len(found) > 10
    assert [p for p in sorted(found) if not known & {_spelt(name) for name in distributions[p]}] == []
