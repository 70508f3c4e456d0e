"""A real Prometheus scrapes a fleet: every expression of the dashboard and of the rules has an answer."""

import contextlib
import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import guard_rig as rig
import prometheus
import pytest
import yaml
from background import until
from ctl_fleet import plan
from guard_rig import Guarded, Load
from host_ports import free_ports

DEPLOY = Path(__file__).parents[3] / "deploy"
PLAN = plan(rig.partition("w", 50.0, rate_rps=20.0, slo_ms=1000.0))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    if prometheus.found("prometheus") is None:
        pytest.skip(prometheus.NOT_RUN)
    with Guarded(tmp_path_factory.mktemp("scraped")) as made:
        made.apply(PLAN)
        made.await_guarded()
        yield made


@contextlib.contextmanager
def scraping(fleet: Guarded, directory: Path) -> Iterator[str]:
    """Prometheus with the rules of deploy/, scraping and evaluating every second."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / "alerts.yml")]
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [f"127.0.0.1:{fleet.metrics}"]}]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    with (directory / "prometheus.log").open("wb") as log:
        running = subprocess.Popen(
            [
                str(prometheus.found("prometheus")),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(timeout=30)


def series(address: str, expression: str) -> int:
    """How many series an expression gives now; none while Prometheus starts."""
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{address}/api/v1/query?{query}", timeout=10) as answer:
            return len(json.load(answer)["data"]["result"])
    except OSError:
        return 0


def test_every_panel_has_a_series_and_the_page_is_clean(fleet: Guarded, tmp_path: Path) -> None:
    panels = json.loads((DEPLOY / "grafana" / "trisect.json").read_text())["panels"]
    wanted = [t["expr"].replace("$job", "trisect") for panel in panels for t in panel["targets"]]
    wanted += ["trisect:late:ratio_rate5m", 'trisect_partition_phase{phase="down"} == 0', "trisect_plan_info"]
    with Load(fleet.grpc, "w", 20.0, 0.003) as load, scraping(fleet, tmp_path) as address:
        load.await_answers(20)
        for expression in wanted:
            until(lambda one=expression: series(address, one) > 0, 60.0, expression)
    # A Triton that is short of time is left out of a scrape.
    seen: list[str] = []
    until(lambda: bool(seen.extend(executed(fleet)) or seen), 60.0, "the server's own metrics")
    assert all('partition="w"' in line for line in seen)
    assert any('role="active"' in line for line in seen)
    own = "\n".join(line for line in scrape(fleet).splitlines() if "nv_" not in line)
    checked = prometheus.promtool("check", "metrics", page=own + "\n")
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def scrape(fleet: Guarded) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{fleet.metrics}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def executed(fleet: Guarded) -> list[str]:
    return [line for line in scrape(fleet).splitlines() if line.startswith("nv_inference_request_success")]
