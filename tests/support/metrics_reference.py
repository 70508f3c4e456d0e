"""docs/metrics.md, from the catalogue of metrics."""

from __future__ import annotations

from controlplane.monitor.metrics import CATALOGUE


def reference() -> str:
    """Return docs/metrics.md: every metric with its type, labels and meaning."""
    lines = [
        "# Metrics",
        "",
        "Made by `python tests/support/metrics_reference.py > docs/metrics.md`; a test compares the two.",
        "",
        "One page, `http://HOST:8002/metrics` by default, where one Triton would have its own. It has the",
        "metrics below and those of every Triton (`nv_*`, also models' own) with the labels `partition`",
        "and `role`. Labels name endpoints, partitions and roles, which stay when a plan is applied again;",
        "no label has a revision, so re-plans add no series. The metrics of the controller are absent while",
        "none runs; `trisect_controller_up` is 0 then.",
        "",
        "HAProxy's own metrics, by its native exporter and under its official names (`haproxy_*`), are on",
        "the same port under `/metrics/haproxy`, where HAProxy was built with it (`haproxy -vv`: `+PROMEX`).",
        "By default the process, the frontends and the servers in use are there; a query such as",
        "`?scope=backend` is passed on to HAProxy. Its label `proxy` names a backend;",
        "`trisect_gateway_slot_info` has that backend's endpoints:",
        "",
        '    sum by (endpoint) (rate(haproxy_server_http_responses_total{code="5xx"}[5m])',
        "      * on (proxy) group_left (endpoint) trisect_gateway_slot_info)",
        "",
        "| metric | type | labels | from | meaning |",
        "|---|---|---|---|---|",
    ]
    for one in CATALOGUE:
        labels = ", ".join(one.labels) or "–"
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.source} | {one.help} |")
    return "\n".join((*lines, ""))


if __name__ == "__main__":
    print(reference(), end="")
