"""Names of strategies and latency models: ours without any one paper, and those of another distribution."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import planning
import pytest

from controlplane.domain.errors import InputError
from controlplane.latency import registry as latency_registry
from controlplane.planning import registry

PAPERS = ("igniter", "gpulet", "inss", "latency_aware")
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Gone(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:3] == ["controlplane", "papers", {paper!r}]:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Gone())
sys.path.insert(0, {support!r})
import planning
from controlplane.cli.main import run
from controlplane.latency import registry as latency_registry
from controlplane.planning import registry

def kept(names):
    return [name for name in names if {paper!r} not in names[name].module.split(".")]

models = kept(latency_registry.FITS)
for name in models:
    assert planning.v100(name).latency.name == name
asked = planning.p99_request(planning.published(12)[:2], device=planning.v100("ours", 4))
comparable = []
for name in kept(registry.STRATEGIES):
    made = registry.strategy(name)
    assert made.plan(asked).gpus, name
    if made.latency_model in models:
        comparable.append(name)
arguments = ["--strategies", ",".join(comparable), "--truths", "measured", "--seconds", "1", "--json"]
sys.exit(run(["compare", {spec!r}, *arguments]))
"""
SPEC = """schema_version: 1
gpus: [{type: v100, count: 4}]
workloads:
  - {name: search, model: resnet50, slo_ms: 40, rate_rps: 300}
  - {name: look, model: alexnet, slo_ms: 20, rate_rps: 500}
"""


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_can_be_missing(paper: str, tmp_path: Path) -> None:
    """Every other strategy and latency model answers to its name, and `ctl compare` compares the rest."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    support, spec = str(Path(__file__).parents[2] / "support"), str(tmp_path / "spec.yaml")
    program = WITHOUT.format(paper=paper, support=support, spec=spec)
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    compared = {one["name"] for one in json.loads(ended.stdout)["strategies"]}
    assert "joint" in compared
    assert len(compared) >= 5


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with a strategy and a latency model, as an installer leaves it."""
    (tmp_path / "another.py").write_text(
        "from dataclasses import dataclass\n"
        "from controlplane.domain.plan import Rule\n"
        "from controlplane.latency import default\n"
        "from controlplane.planning.judge.finalise import Draft, finalise\n"
        "@dataclass(frozen=True)\n"
        "class Nothing:\n"
        "    iterations: int = 1\n"
        "    name: str = 'nothing'\n"
        "    rule: Rule = Rule.P99\n"
        "    latency_model: str = 'another'\n"
        "    def plan(self, request):\n"
        "        return finalise(self.name, request, Draft(()), 0.0)\n"
        "def fit(profiles, device):\n"
        "    return default.fit(profiles, device)\n"
    )
    folder = tmp_path / "another-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[trisect.strategies]\nnothing = another:Nothing\njoint = another:Nothing\n"
        "[trisect.latency_models]\nanother = another:fit\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("another", None)


@pytest.mark.usefixtures("installed")
def test_another_distribution_adds_a_strategy_and_a_latency_model() -> None:
    made = registry.strategy("nothing", iterations=3)
    assert made.plan(planning.request(planning.published(12))).strategy == "nothing"
    assert "nothing" in registry.STRATEGIES.names()
    device, profiles = planning.v100("ours").pool.device, planning.v100("ours").profiles
    assert latency_registry.build("another", device, profiles).models == tuple(profiles)
    with pytest.raises(InputError, match="did you mean nothing"):
        registry.strategy("nothin")


@pytest.mark.usefixtures("installed")
def test_another_distribution_takes_no_name_of_ours_and_no_option_of_others() -> None:
    assert type(registry.strategy("joint")).__module__.startswith("controlplane.planning.joint")
    with pytest.raises(InputError, match="not for nothing") as told:
        registry.strategy("nothing", as_coded=True)
    assert told.value.field == "as_coded"
