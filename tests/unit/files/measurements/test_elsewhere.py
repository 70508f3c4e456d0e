"""Readers of other tools' measurements. The files' sources are in tests/data/elsewhere/README.md."""

import json
from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.files.measurements.elsewhere import (
    Run,
    read_aiperf,
    read_alone,
    read_model_analyzer,
    read_perf_analyzer,
)

DATA = Path(__file__).parents[3] / "data" / "elsewhere"


def test_perf_analyzers_own_and_documented_file_are_read() -> None:
    run = read_perf_analyzer(DATA / "perf_analyzer.csv", 4)
    assert (run.batch, run.split) == (4, True)
    assert run.frontend_ms is not None
    assert 0 < run.frontend_ms < run.execution_ms
    assert run.spread_ms is not None
    run = read_perf_analyzer(DATA / "perf_analyzer_documented.csv", 1)
    assert run.execution_ms == pytest.approx(0.206 + 11.781 + 0.019)
    assert run.frontend_ms == pytest.approx(0.225 + 2.148)
    assert run.spread_ms == pytest.approx((21.018 - 13.891) / 2.326)


def test_the_slowest_configuration_with_one_instance_counts_of_model_analyzer() -> None:
    (run,) = read_model_analyzer(DATA / "metrics-model-inference.csv", "resnet50_libtorch")
    assert run == Run(1, 8.1, split=False, max_batch=32)


def test_model_analyzers_times_in_the_server_are_read() -> None:
    one, eight = read_model_analyzer(DATA / "metrics-model-inference-server.csv", "resnet50")
    assert (one.batch, one.execution_ms, one.split) == (1, 4.7, True)
    assert one.frontend_ms == pytest.approx(1.4)
    assert (eight.batch, eight.execution_ms) == (8, pytest.approx(18.0))
    assert eight.spread_ms == pytest.approx(3.2 / 2.326)


def test_aiperfs_latency_counts_whole() -> None:
    run = read_aiperf(DATA / "profile_export_aiperf.json", 1)
    assert run == Run(1, 2620.71, split=False, spread_ms=297.93)


def test_more_requests_under_way_are_refused(tmp_path: Path) -> None:
    lines = DOCUMENTED.splitlines()
    busy = tmp_path / "busy.csv"
    busy.write_text("\n".join([lines[0], *lines[2:]]))
    with pytest.raises(InputError, match="--concurrency-range 1"):
        read_perf_analyzer(busy, 1)
    document = json.loads((DATA / "profile_export_aiperf.json").read_text())
    document["request_throughput"]["avg"] = 1.45
    many = tmp_path / "many.json"
    many.write_text(json.dumps(document, indent=1))
    with pytest.raises(
        InputError, match=r"many.json:\d+: request_throughput.avg: 3.8 requests were under way"
    ):
        read_aiperf(many, 1)


DOCUMENTED = (DATA / "perf_analyzer_documented.csv").read_text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "Concurrency: has no such column; .*perf_analyzer -m MODEL"),
        ("Request Rate,Inferences/Second\n10,10\n", "Concurrency: has no such column"),
        (DOCUMENTED.replace("11781", "n/a"), "f.csv:2: Server Compute Infer: must be a number .*, not 'n/a'"),
    ],
)
def test_other_csv_files_are_refused_with_the_way_out(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "f.csv"
    file.write_text(content)
    with pytest.raises(InputError, match=said):
        read_perf_analyzer(file, 1)


def test_an_unknown_model_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match=r"has no run of 'resnet'; did you mean 'resnet50'"):
        read_model_analyzer(DATA / "metrics-model-inference-server.csv", "resnet")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "has no request_latency"),
        ({"request_latency": {"unit": "tokens", "avg": 1}}, "is no unit of time"),
        ({"request_latency": {"unit": "ms"}}, "must be a number of at least 0, not None"),
        ({"request_latency": {"unit": "ms", "avg": 1}}, "request_throughput: must be a mapping"),
        ({"request_latency": {"unit": "ms", "avg": 1}, "was_cancelled": True}, "was cancelled"),
    ],
)
def test_other_json_files_are_refused(tmp_path: Path, document: object, said: str) -> None:
    file = tmp_path / "f.json"
    file.write_text(json.dumps(document))
    with pytest.raises(InputError, match=said):
        read_aiperf(file, 1)


def test_a_measurement_of_a_model_alone_is_named_by_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "alone.csv"
    path.write_text("\ufeffmodel,percent,batch,ms\r\n\r\nalexnet,50,4,5.2\r\n")
    (one,) = read_alone(path, {"alexnet"})
    assert (one.model, one.percent, one.batch, one.latency_ms) == ("alexnet", 50.0, 4, 5.2)
    wrong = {
        "a,500,1,5": "percent",
        "a,50,1.5,5": "batch",
        "a,50,0,5": "batch",
        "a,50,1e30,5": "batch",
        "b,50,1,5": "model",
        "a,50,1,5,6": None,
        "a,50,1,slow": "ms",
        "a,50,1,0": "ms",
    }
    for row, field in wrong.items():
        path.write_text(f"model,percent,batch,ms\na,50,1,5\n{row}\n")
        with pytest.raises(InputError) as refused:
            read_alone(path, {"a"})
        assert (refused.value.file, refused.value.line, refused.value.field) == (str(path), 3, field)
    path.write_text("model,percent,ms\na,50,5\n")
    with pytest.raises(InputError) as refused:
        read_alone(path, {"a"})
    assert (refused.value.line, refused.value.field) == (1, "batch")
