"""The page of metrics. `FIRST` has what is counted before any other call."""

import http.client
import itertools
import re
from typing import Any

from conformance_calls.case import LONG_S, Cases, Target, infer, x

FIRST, CASES = Cases(), Cases()


@FIRST.case("metrics: no call is none")
def _(target: Target) -> Any:
    names = "request_success|count|exec_count|queue_duration_us|compute_infer_duration_us"
    counted = rf'^(nv_inference_(?:{names})\{{model="(?!warmed|twin|step)[^"]*").* (.+)$'
    return sorted(set(re.findall(counted, target.page(), re.MULTILINE)))


@CASES.case("metrics: names, types and the labels of models")
def _(target: Target) -> Any:
    page = target.page()
    heads = {line for line in page.splitlines() if line.startswith("# TYPE nv_") and "summary" not in line}
    names = set(re.findall(r'^(nv_inference\w*)\{model="plain"', page, re.MULTILINE))
    return heads, {name for name in names if "summary" not in name}


@CASES.case("metrics: a model's own")
def _(target: Target) -> Any:
    infer(target, "http", "counts", x(1))
    lines = (line for line in target.page().splitlines() if "own_requests" in line)
    return [re.sub(r",(partition|role)=.*?(?=[,}])", "", line) for line in lines if "shadow" not in line]


@CASES.case("metrics: tags of a model")
def _(target: Target) -> Any:
    infer(target, "http", "Echo.v1-2_X", x(1))
    lines = (line for line in target.page().splitlines() if "team=" in line and "shadow" not in line)
    return sorted(
        re.sub(r",(partition|role)=.*?(?=[,}])|} .*", "", line) for line in lines if "summary" not in line
    )


@CASES.case("metrics: every path with every method")
def _(target: Target) -> Any:
    found = []
    for method, path in itertools.product(("GET", "HEAD", "POST"), ("/", "/metrics", "/metrics/", "/x")):
        connection = http.client.HTTPConnection(target.host, target.metrics_port, timeout=LONG_S)
        connection.request(method, path)
        found.append((method, path, connection.getresponse().status))
        connection.close()
    return found


@CASES.case("metrics: labels of the fleet", "metric-labels")
def _(target: Target) -> Any:
    return re.findall(r"^nv_inference_request_success\{.*?(partition)=", target.page(), re.MULTILINE)
