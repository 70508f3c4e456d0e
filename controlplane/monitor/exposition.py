"""One Prometheus page for the fleet: the gateway's requests, HAProxy's counters, and each Triton's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from controlplane.domain.fleet import Backend
from controlplane.domain.observation import LatencyWindow
from controlplane.monitor.records import Losses, Record, protocol_of

_PROXY = {
    "scur": ("gauge", "haproxy_current_sessions", "Requests on it now."),
    "qcur": ("gauge", "haproxy_current_queue", "Requests waiting for it."),
    "stot": ("counter", "haproxy_sessions", "Requests it ever had."),
    "econ": ("counter", "haproxy_connection_errors", "Connections that failed."),
    "eresp": ("counter", "haproxy_response_errors", "Answers that broke off."),
    "wretr": ("counter", "haproxy_retry_warnings", "Requests sent again."),
    "wredis": ("counter", "haproxy_redispatch_warnings", "Requests sent to another server instead."),
    "bin": ("counter", "haproxy_bytes_in", "Bytes from clients."),
    "bout": ("counter", "haproxy_bytes_out", "Bytes to clients."),
}
_MINUTE_S = 60.0
_UNAVAILABLE = 14


class Totals:
    """Counters since the monitor started."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str, int, int | None, bool], list[int]] = {}

    def add(self, record: Record, server: str) -> None:
        """Count an ended request."""
        key = (record.endpoint, server, record.sender, record.http, record.grpc, record.abandoned)
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = [0, 0, 0]
        sums[0] += 1
        sums[1] += record.bytes_in
        sums[2] += record.bytes_out

    def requests(self) -> Counter[tuple[str, str, str, str]]:
        """By endpoint, server, protocol and status (`abandoned` where the client left)."""
        counts: Counter[tuple[str, str, str, str]] = Counter()
        for (endpoint, server, sender, http, grpc, abandoned), (count, _, _) in self._sums.items():
            protocol = protocol_of(sender)
            # A call that HAProxy ends without a status of gRPC's reads UNAVAILABLE.
            status = http if protocol == "http" else grpc or (_UNAVAILABLE if http >= 500 else 0)
            code = "abandoned" if abandoned else str(status)
            counts[endpoint, server, protocol, code] += count
        return counts

    def bytes(self) -> Counter[tuple[str, str, str]]:
        """By endpoint, server and direction."""
        counts: Counter[tuple[str, str, str]] = Counter()
        for (endpoint, server, *_), (_, size, sent) in self._sums.items():
            counts[endpoint, server, "in"] += size
            counts[endpoint, server, "out"] += sent
        return counts


def placed(server: str) -> tuple[str, str]:
    """Partition and role, from a server's name (`fleet.partition.role.revision`)."""
    parts = server.split(".")
    return (".".join(parts[1:-2]), parts[-2]) if len(parts) >= 4 else (server, "")


def own(totals: Totals, losses: Losses, minute: Mapping[tuple[str, str], LatencyWindow]) -> Iterator[Metric]:
    """What the monitor itself counted, and the last minute's latencies."""
    where = ["endpoint", "server", "partition", "role"]
    requests = CounterMetricFamily(
        "trisect_requests", "Inferences that ended, by status.", labels=[*where, "protocol", "code"]
    )
    for (endpoint, server, protocol, code), count in sorted(totals.requests().items()):
        requests.add_metric([endpoint, server, *placed(server), protocol, code], count)
    size = CounterMetricFamily("trisect_request_bytes", "Bytes of inferences.", labels=[*where, "direction"])
    for (endpoint, server, direction), count in sorted(totals.bytes().items()):
        size.add_metric([endpoint, server, *placed(server), direction], count)
    latency = GaugeMetricFamily(
        "trisect_request_latency_milliseconds",
        "Of inferences of the last minute, from arrival at the gateway to the last byte of the answer.",
        labels=[*where, "quantile"],
    )
    rate = GaugeMetricFamily("trisect_request_rate", "Requests a second, last minute.", labels=where)
    errors = GaugeMetricFamily("trisect_request_errors", "Failures of the last minute.", labels=where)
    for (endpoint, server), window in minute.items():
        labels = [endpoint, server, *placed(server)]
        for quantile, value in (("0.5", window.p50_ms), ("0.99", window.p99_ms)):
            if value is not None:
                latency.add_metric([*labels, quantile], value)
        rate.add_metric(labels, window.requests / _MINUTE_S)
        errors.add_metric(labels, window.errors)
    received = CounterMetricFamily("trisect_telemetry_lines", "Lines of the gateway's log.")
    received.add_metric([], losses.received)
    lost = CounterMetricFamily("trisect_telemetry_lines_lost", "Lines that never came.")
    lost.add_metric([], losses.lost)
    yield from (requests, size, latency, rate, errors, received, lost)


def haproxy(rows: Iterable[Mapping[str, str]], endpoints: Mapping[str, Sequence[str]]) -> Iterator[Metric]:
    """HAProxy's counters of what is in use. `endpoints`: those whose requests go through a backend.

    They cannot be told apart there: the label lists them, joined by commas.
    """
    labels = ["proxy", "server", "endpoint"]
    families: dict[str, Metric] = {}
    kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
    for column, (kind, name, text) in _PROXY.items():
        families[column] = kinds[kind](name, text, labels=labels)
    up = GaugeMetricFamily("haproxy_server_up", "1 where requests go.", labels=labels)
    for row in rows:
        proxy, server = row["pxname"], row["svname"]
        slot = proxy.startswith(("g_", "h_"))
        if (slot and proxy not in endpoints) or row["status"].startswith("MAINT"):
            continue
        values = [proxy, server, ",".join(endpoints.get(proxy, ()))]
        for column, family in families.items():
            if row.get(column):
                family.add_metric(values, float(row[column]))  # type: ignore[attr-defined]
        if slot and server != "BACKEND":
            up.add_metric(values, 1.0 if row["status"].startswith("UP") else 0.0)
    yield from (*families.values(), up)


def tritons(pages: Sequence[tuple[Backend, str]]) -> Iterator[Metric]:
    """Each Triton's own page, with partition and role as labels; a malformed one is left out."""
    families: dict[str, Metric] = {}
    for backend, text in pages:
        partition, role = placed(backend.server)
        for family in _parsed(text):
            into = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                labels = {**sample.labels, "server": backend.server, "partition": partition, "role": role}
                into.add_sample(sample.name, labels, sample.value)
    yield from families.values()


def _parsed(page: str) -> list[Metric]:
    try:
        return list(text_string_to_metric_families(page))
    except ValueError:
        return []
