"""HTTP as such: every path with every method, and requests as they stand on a connection."""

import contextlib
import gzip
import http.client
import socket
import time
from functools import partial
from typing import Any

from conformance_calls.bodies import BODY, PLAIN
from conformance_calls.case import LONG_S, Cases, Target

CASES = Cases()
_WRITTEN = """
    / /metrics /v2 /v2/ //v2 /V2 /v2/nothing /v2/health/live /v2/health/ready /v2/repository/index /v2/logging
    /v2/trace/setting /v2/systemsharedmemory/status /v2/cudasharedmemory/status
    /v2/systemsharedmemory/region/x/status /v2/models /v2/models/stats /v2/models//infer
    /v2/models/plain /v2/models/plain/ /v2/models/plain/ready /v2/models/plain/infer /v2/models/plain/generate
    /v2/models/plain/stats/ /v2/models/plain/trace/setting /v2/models/plain/versions/x
    /v2/models/plain/versions/9 /v2/models/plain/versions/9/ready /v2/models/plain/versions/9/stats
    /v2/models/plain/versions/01/ready /v2/models/versioned/versions/3 /v2/models/versioned/versions/1/ready
    /v2/models/%70lain/config /v2/models/Echo.v1-2_X
    /v2/models/nosuch /v2/models/nosuch/ready /v2/models/nosuch/infer /v2/models/nosuch/generate
    /v2/models/nosuch/config /v2/models/nosuch/stats /v2/models/nosuch/trace/setting
    /v2/models/nosuch/generate_stream
"""
for _method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
    for _path in _WRITTEN.split():
        if (_method, _path) not in (("POST", "/v2/repository/index"), ("GET", "/v2/models/stats")):
            CASES.add(f"http: {_method} {_path}", lambda t, m=_method, p=_path: t.raw(m, p))


@CASES.case("http: models that only others call", "composing-models")
def _(target: Target) -> Any:
    return target.raw("GET", "/v2/models/step")[0]


def _written(target: Target, head: str, body: bytes) -> Any:
    """What comes of a request as it stands here, until its connection is closed; headers in any order."""
    lines = f"{head}\nConnection: close\n\n".replace("\n", "\r\n")
    with socket.create_connection((target.host, target.http_port), LONG_S) as connection:
        connection.sendall(lines.encode() + body)
        with connection.makefile("rb") as answer:
            found, _, content = answer.read().partition(b"\r\n\r\n")
    return sorted(found.split(b"\r\n")), content


@CASES.case("http: two requests at once on a connection", "pipelining")
def _(target: Target) -> Any:
    request, found = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n", b""
    with socket.create_connection((target.host, target.http_port), timeout=5) as connection:
        connection.sendall(request * 2)
        with contextlib.suppress(TimeoutError):
            while found.count(b"HTTP/1.1 200") < 2 and (part := connection.recv(65536)):
                found += part
    return found.count(b"HTTP/1.1 200")


@CASES.case("http: a client that is silent for six seconds first", "slow-clients", slow=True)
def _(target: Target) -> Any:
    with socket.create_connection((target.host, target.http_port), LONG_S) as connection:
        time.sleep(6)  # longer than HAProxy waits for a head
        with contextlib.suppress(OSError):
            connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
            return connection.recv(len("HTTP/1.1 200"))


_SIZED = f"POST {PLAIN} HTTP/1.1\nHost: x\nContent-Length: {len(BODY)}"
_CHUNKED = f"POST {PLAIN} HTTP/1.1\nHost: x\nTransfer-Encoding: chunked"
_EXTENDED = b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
for _name, _head, _body, _row in (
    ("of a Triton, as they stand", "GET /v2/models/plain HTTP/1.1\nHost: x", b"", None),
    ("of the facade, as they stand", "GET /v2 HTTP/1.1\nHost: x", b"", None),
    ("without a host", "GET /v2 HTTP/1.1", b"", None),
    ("of an unknown method", "FOO /v2 HTTP/1.1\nHost: x", b"", None),
    ("of HTTP/1.0", f"POST {PLAIN} HTTP/1.0\nContent-Length: {len(BODY)}", BODY, None),
    ("for a range", "GET /v2/models/plain HTTP/1.1\nHost: x\nRange: bytes=0-3", b"", None),
    ("with a query", _SIZED.replace(" HTTP", "?a=b HTTP"), BODY, None),
    ("of one that expects", f"{_SIZED}\nExpect: 100-continue", BODY, None),
    ("with a header twice", f"{_SIZED}\nx-user: 1\nx-user: 2".replace("plain", "about"), BODY, None),
    ("to a target with a host", "GET http://x/v2/models/plain HTTP/1.1\nHost: x", b"", None),
    (
        "with a login",
        f"{_SIZED}\nauthorization: Basic YTpi\ncookie: a=b".replace("plain", "about"),
        BODY,
        None,
    ),
    ("with an extended chunk", _CHUNKED, _EXTENDED, "malformed-http"),
    ("with two lengths", f"{_SIZED}\nContent-Length: 3", BODY, "malformed-http"),
):
    CASES.add(f"http: answers {_name}", partial(_written, head=_head, body=_body), _row)


def _chunked(target: Target, body: bytes, headers: dict[str, str]) -> Any:
    parts = (body[i : i + 10] for i in range(0, len(body), 10))
    return target.raw("POST", PLAIN, parts, headers, encode_chunked=True)


CASES.add("http: chunked", partial(_chunked, body=BODY, headers={}))
CASES.add(
    "http: chunked, compressed",
    partial(_chunked, body=gzip.compress(BODY), headers={"Content-Encoding": "gzip"}),
)


@CASES.case("http: requests of one connection")
def _(target: Target) -> Any:
    connection = http.client.HTTPConnection(target.host, target.http_port, timeout=LONG_S)
    found = []
    for path in (PLAIN, "/v2/models/nosuch/infer", "/v2/models/plain/versions/1/infer") * 3:
        connection.request("POST", path, BODY)
        answer = connection.getresponse()
        found.append((answer.status, sorted(answer.getheaders()), answer.read()))
    connection.close()
    return found


@CASES.case("http: a client that closes its side after its request", "half-closed")
def _(target: Target) -> Any:
    # A second's work: its answer does not overtake the end of the client's side.
    body = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}]}'
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((target.host, target.http_port), LONG_S) as connection:
        connection.sendall(head.encode() + body)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(len("HTTP/1.1 200"))
