"""docs/metrics.md, from the catalogue of metrics.

python tests/support/metrics_reference.py > docs/metrics.md
"""

from controlplane.monitor.metrics import CATALOGUE


def reference() -> str:
    """Return docs/metrics.md: every metric with its type, labels and meaning."""
    lines = [
        "# Metrics",
        "",
        "One page, `http://HOST:8002/metrics` by default: the metrics below and those of every",
        "Triton (`nv_*`) with the labels `partition` and `role` (of the server's start). New plans",
        "add no series. The metrics of the controller are absent without one; then",
        "`trisect_controller_up` is 0.",
        "",
        "HAProxy's own metrics (`haproxy_*`) are under `/metrics/haproxy`, where it was built with them",
        "(`haproxy -vv`: `+PROMEX`): the process, the frontends and the servers in use, or what a query",
        "such as `?scope=backend` names. `trisect_gateway_slot_info` has the endpoints of a backend",
        "(its `proxy`):",
        "",
        '    sum by (endpoint) (rate(haproxy_server_http_responses_total{code="5xx"}[5m])',
        "      * on (proxy) group_left (endpoint) trisect_gateway_slot_info)",
        "",
    ]
    for source in ("monitor", "controller"):
        lines += [f"## Of the {source}", "", "| metric{labels} | type | meaning |", "|---|---|---|"]
        for one in (metric for metric in CATALOGUE if metric.source == source):
            labels = f"{{{','.join(one.labels)}}}" if one.labels else ""
            lines.append(f"| `{one.name}{labels}` | {one.kind} | {one.help} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(reference(), end="")
