import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from controlplane.monitor.audit import AuditLog, entry
from controlplane.monitor.records import parse

PLAIN = b"grpc:h77 12 m one:abc:backup g_3 200 - --/0/- 100 200 1700000000250000 1700000001750000"
LINE = PLAIN + b" shop 192.0.2.7 id-1 POST /inference.GRPCInferenceService/ModelInfer"


def test_a_line_says_who_called_what_where_and_how_it_ended() -> None:
    assert entry(LINE) == {
        "at": "2023-11-14T22:13:21.750+00:00",
        "client": "shop",
        "address": "192.0.2.7",
        "request": "id-1",
        "protocol": "grpc",
        "method": "POST",
        "path": "/inference.GRPCInferenceService/ModelInfer",
        "endpoint": "m",
        "server": "one",
        "http": 200,
        "grpc": None,
        "flags": "--",
        "bytes_in": 100,
        "bytes_out": 200,
        "ms": 1500.0,
    }
    assert parse(LINE) == parse(PLAIN)
    assert entry(PLAIN) is None


@given(st.lists(st.binary(max_size=40)))
def test_what_a_client_writes_makes_no_line_of_its_own(tmp_path_factory: object, noise: list[bytes]) -> None:
    path = Path(str(tmp_path_factory.mktemp("audit"))) / "audit.jsonl"  # type: ignore[attr-defined]
    AuditLog(path).take([LINE + part for part in noise])
    for line in path.read_text().splitlines() if path.exists() else ():
        assert set(json.loads(line)) == set(entry(LINE) or ())


def test_the_file_starts_anew_and_four_earlier_ones_stay(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", limit_bytes=1)
    for _ in range(8):
        log.take([LINE])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "audit.jsonl",
        *(f"audit.jsonl.{n}" for n in range(1, 5)),
    ]
