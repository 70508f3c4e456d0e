"""The rules and the dashboard in deploy/: valid, tested, and only about metrics that exist."""

import json
import re
from pathlib import Path

import prometheus
import pytest
import yaml

from controlplane.monitor.metrics import CATALOGUE, Kind

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
EXISTING = {f.name for f in CATALOGUE} | {f"{f.name}_bucket" for f in CATALOGUE if f.kind is Kind.HISTOGRAM}


def expressions() -> list[str]:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    panels = json.loads((DEPLOY / "grafana" / "trisect.json").read_text())["panels"]
    return [r["expr"] for r in rules] + [t["expr"] for panel in panels for t in panel["targets"]]


def test_every_metric_of_rules_and_dashboard_exists() -> None:
    named = {name for text in expressions() for name in re.findall(r"\btrisect_\w+", text)}
    assert named
    assert named <= EXISTING


@pytest.mark.parametrize(
    "arguments", [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]]
)
def test_promtool_accepts_the_rules(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if prometheus.found("promtool") is None:
        pytest.skip(prometheus.NOT_RUN)
    monkeypatch.chdir(RULES.parent)
    checked = prometheus.promtool(*arguments)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_alert_has_a_unit_test() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    tested = yaml.safe_load((RULES.parent / "alerts_test.yml").read_text())["tests"]
    names = {one["alertname"] for test in tested for one in test["alert_rule_test"]}
    assert names == {rule["alert"] for rule in rules if "alert" in rule}
