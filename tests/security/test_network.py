"""A gateway on a network: TLS, tokens, client certificates, grants, limits and the audit log."""

import contextlib
import gzip
import http.client
import json
import os
import signal
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import gateway_rig as rig
import grpc
import pytest
from background import stopped, until
from certificates import Authority
from gateway_clients import BODY, SERVICE, http_call, inference
from tls_network import Code, Network, created, status_of

from controlplane.domain.errors import GatewayError
from controlplane.domain.fleet import AccessConfig
from controlplane.files.gateway.access import Client
from controlplane.gateway import processes
from controlplane.gateway.running import RuntimeSocket
from controlplane.gateway.security import registry


def test_plain_text_gets_no_answer(network: Network, token: str) -> None:
    for port in (network.ports.http, network.ports.grpc, network.ports.metrics):
        with socket.create_connection((rig.HOST, port), 60) as connection:
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            try:
                assert b"200" not in connection.recv(4096)
            except ConnectionResetError:
                continue


def test_a_granted_endpoint_is_served_over_both_protocols(network: Network, token: str) -> None:
    assert network.http("POST", "/v2/models/first/infer", token, body=BODY)[0] == 200
    for method in ("ModelInfer", "ModelStreamInfer"):
        assert network.grpc(method, inference("first"), token) is Code.OK


@pytest.mark.parametrize("given", [None, "", "wrong", "trisect_" + "A" * 43, "x" * 5000])
def test_without_a_valid_token_every_call_is_unauthenticated(network: Network, given: str | None) -> None:
    for path in (
        "/v2/models/first/infer",
        "/v2/models/first/generate",
        "/v2/repository/index",
        "/v2/logging",
    ):
        status, _, headers = network.http("POST", path, given, body=BODY)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
    for path in ("/v2", "/v2/models/stats", "/v2/models/first/config"):
        assert network.http("GET", path, given)[0] == 401
    for method in ("ModelInfer", "ModelStreamInfer", "ModelConfig", "RepositoryIndex", "TraceSetting"):
        assert network.refuses(Code.UNAUTHENTICATED, method, inference("first"), given)
    assert network.http("GET", "/v2/health/ready", given)[0] == 200


def test_another_clients_endpoint_is_denied_however_it_is_called(network: Network, token: str) -> None:
    body, packed = BODY, gzip.compress(BODY)
    for path in (
        "/v2/models/second/infer",
        "/v2/models/s%65cond/infer",
        "/v2/models/second/versions/1/infer",
    ):
        assert network.http("POST", path, token, body=body)[0] == 403
        assert network.http("POST", path, token, body=packed, headers={"Content-Encoding": "gzip"})[0] == 403
    for path in ("", "/config", "/ready", "/stats"):
        assert network.http("GET", f"/v2/models/second{path}", token)[0] == 403
    for method in ("ModelInfer", "ModelStreamInfer", "ModelConfig", "ModelReady", "ModelStatistics"):
        message = b"\x0a\x06second" if "Infer" not in method else inference("second")
        assert network.refuses(Code.PERMISSION_DENIED, method, message, token)
    denied = network.grpc("ModelInfer", inference("second"), token, compression=grpc.Compression.Gzip)
    assert denied is Code.PERMISSION_DENIED


def test_listings_show_granted_endpoints_only(network: Network, token: str) -> None:
    _, index, _ = network.http("POST", "/v2/repository/index", token)
    assert {entry["name"] for entry in json.loads(index)} == {"first", "slow"}
    _, statistics, _ = network.http("GET", "/v2/models/stats", token)
    assert {entry["name"] for entry in json.loads(statistics)["model_stats"]} == {"first", "slow"}


def test_fleet_wide_calls_and_metrics_are_for_operators(network: Network, token: str) -> None:
    with created(network, Client("operator", (), operator=True)) as operator:
        for given, status, code in ((token, 403, Code.PERMISSION_DENIED), (operator, 200, Code.OK)):
            assert network.http("GET", "/v2/logging", given)[0] == status
            assert network.grpc("LogSettings", b"", given) is code
        assert network.http("GET", "/metrics", token, port=network.ports.metrics)[0] == 401
        assert network.http("GET", "/metrics", operator, port=network.ports.metrics)[0] == 200
        assert network.http("POST", "/v2/models/first/infer", operator, body=BODY)[0] == 403


def test_a_revoked_token_is_refused_on_open_connections_and_streams(network: Network, token: str) -> None:
    metadata = [("authorization", f"Bearer {token}")]
    revoked = threading.Event()

    def messages() -> Iterator[bytes]:
        yield inference("first")
        revoked.wait(60)
        yield inference("first")

    with network.channel() as channel:
        stream = channel.stream_stream(SERVICE + "ModelStreamInfer")(
            messages(), timeout=60, metadata=metadata
        )
        assert status_of(channel, "ModelInfer", inference("first"), token) is Code.OK
        next(stream)
        (name,) = (client.name for client in network.clients.clients())
        network.clients.revoke(name)
        revoked.set()
        assert status_of(channel, "ModelInfer", inference("first"), token) is Code.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as ended:
            next(stream)
        # HAProxy may pass on the reset alone that ends a stream with its status.
        assert cast(grpc.Call, ended.value).code() in (Code.PERMISSION_DENIED, Code.CANCELLED)


def test_a_token_that_is_revoked_while_haproxy_hangs_is_refused_afterwards(
    network: Network, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "RuntimeSocket", partial(RuntimeSocket, timeout_s=0.2))
    haproxy = rig.only(network.places, processes.HAPROXY)
    (name,) = (client.name for client in network.clients.clients())
    os.kill(haproxy, signal.SIGSTOP)
    woken = threading.Timer(1.0, os.kill, (haproxy, signal.SIGCONT))
    woken.start()
    try:
        network.clients.revoke(name)
    finally:
        woken.join()
    assert network.http("GET", "/v2/models/first/ready", token)[0] == 401


def test_a_client_that_haproxy_may_still_accept_is_not_said_to_be_revoked(
    network: Network, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "RuntimeSocket", partial(RuntimeSocket, timeout_s=0.2))
    monkeypatch.setattr(registry, "_ANSWER_DEADLINE_S", 0.0)
    haproxy = rig.only(network.places, processes.HAPROXY)
    (name,) = (client.name for client in network.clients.clients())
    with stopped(haproxy), pytest.raises(GatewayError, match=rf"process {haproxy}\) does not answer"):
        network.clients.revoke(name)
    network.clients.create(Client(name, ("first",)))  # brings HAProxy to the file


def test_tokens_are_kept_as_hashes_only(network: Network, token: str) -> None:
    assert network.http("POST", "/v2/models/first/infer", token, body=BODY)[0] == 200
    for path in network.places.state.rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path
    assert token not in network.triton.log.read_text(errors="replace")


def test_a_clients_certificate_is_a_credential_until_it_expires(network: Network) -> None:
    known, stranger = network.authority.sign("known"), network.authority.sign("stranger")
    expired = network.authority.sign("expired", days=-1)
    clients = (Client(name, ("first",), certificate=name) for name in ("known", "expired"))
    with created(network, *clients):
        path = "/v2/models/first/infer"
        assert network.http("POST", path, client=known, body=BODY)[0] == 200
        assert network.http("POST", "/v2/models/second/infer", client=known, body=BODY)[0] == 403
        assert network.http("POST", path, client=stranger, body=BODY)[0] == 401
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
            network.http("POST", path, client=expired, body=BODY)
        with network.channel(known) as channel:
            assert channel.unary_unary(SERVICE + "ModelInfer")(inference("first"), timeout=60)


def test_an_operators_certificate_opens_the_page_of_metrics(network: Network) -> None:
    operator, other = network.authority.sign("operator"), network.authority.sign("other")
    entitled = Client("op", (), certificate="operator", operator=True)
    with created(network, entitled, Client("other", ("*",), certificate="other")):
        statuses = [
            network.http("GET", "/metrics", client=shown, port=network.ports.metrics)[0]
            for shown in (operator, other, None)
        ]
    assert statuses == [200, 401, 401]


def test_without_tokens_a_certificate_is_needed_on_every_port_and_by_no_way_around(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.sign("gateway"), authority.sign("client")
    protection = AccessConfig(str(server.certificate), str(server.key), str(authority.certificate))
    context = ssl.create_default_context(cafile=str(authority.certificate))

    with rig.a_gateway(tmp_path, protection=protection) as (_, ports):
        pages = ((ports.http, "/v2/health/live"), (ports.metrics, "/metrics"))
        for port, path in pages:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                http_call(f"{rig.HOST}:{port}", "GET", path, context=context)
        context.load_cert_chain(client.certificate, client.key)
        for port, path in pages:
            assert http_call(f"{rig.HOST}:{port}", "GET", path, context=context)[0] == 200


def test_a_client_that_reaches_its_limit_is_told_when_to_come_back(network: Network) -> None:
    with created(network, Client("limited", ("slow",), max_requests=1)) as token:
        metadata = [("authorization", f"Bearer {token}")]
        with network.channel() as channel:
            call = channel.unary_unary(SERVICE + "ModelInfer")
            with rig.held(network.triton):
                begun = rig.noted(network.triton.slow, "begun")
                first = call.future(inference("slow", rig.HELD), timeout=60, metadata=metadata)
                until(lambda: rig.noted(network.triton.slow, "begun") > begun)
                status, _, headers = network.http("POST", "/v2/models/slow/infer", token, body=BODY)
                assert (status, headers["retry-after"]) == (429, "1")
                assert network.grpc("ModelInfer", inference("slow"), token) is Code.RESOURCE_EXHAUSTED
            assert first.result()
        quick = inference("slow", 0.0)
        until(lambda: network.grpc("ModelInfer", quick, token) is Code.OK)


def test_the_rate_of_a_client_is_limited(network: Network) -> None:
    seen: Counter[int] = Counter()
    with created(network, Client("hasty", ("first",), max_rate_rps=3)) as token:
        # However slowly they go: at last more than three come within a second.
        until(lambda: seen.update([network.http("GET", "/v2/models/first/ready", token)[0]]) or seen[429])
    assert seen[200] >= 3
    assert seen.keys() == {200, 429}


def test_a_client_cannot_say_for_haproxy_which_client_it_is(network: Network) -> None:
    headers = {"x-trisect-client": "op", "x-trisect-gateway": "0123456789abcdef"}
    operator = Client("op", ("*",), certificate="op", operator=True)
    with created(network, operator, Client("limited", ("slow",))) as limited:
        assert network.http("GET", "/v2/logging", headers=headers)[0] == 401
        assert network.http("GET", "/v2/logging", limited, headers=headers)[0] == 403
        forged = [("authorization", f"Bearer {limited}"), *headers.items()]
        with network.channel() as channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(SERVICE + "LogSettings")(b"", timeout=60, metadata=forged)
        assert cast(grpc.Call, caught.value).code() is Code.PERMISSION_DENIED


def test_every_request_is_audited_with_its_client_and_id(network: Network, token: str) -> None:
    headers = {"X-Request-Id": "mine.1"}
    _, _, answered = network.http("POST", "/v2/models/first/infer", token, body=BODY, headers=headers)
    assert answered["x-request-id"] == "mine.1"
    _, _, refused = network.http(
        "POST", "/v2/models/first/infer", body=BODY, headers={"X-Request-Id": "a b\tc"}
    )
    assert refused["x-request-id"] not in ("", "a b\tc")

    def audited() -> list[dict[str, Any]]:
        path = network.places.audit
        lines = path.read_text().splitlines() if path.exists() else []
        return [e for e in map(json.loads, lines) if e["request"] in ("mine.1", refused["x-request-id"])]

    until(lambda: len(audited()) == 2)
    # Several threads of HAProxy may write them in any order.
    allowed, denied = sorted(audited(), key=lambda entry: entry["request"] != "mine.1")
    assert allowed["client"].startswith("client-")
    assert (allowed["server"], allowed["endpoint"], allowed["http"]) == ("one", "first", 200)
    assert (denied["client"], denied["http"]) == (None, 401)
    assert network.places.audit.stat().st_mode & 0o777 == 0o600


def test_a_question_with_a_body_of_unknown_length_passes_where_bodies_are_counted(
    network: Network, token: str
) -> None:
    """A server would hold all of it. The facade is no server in the log."""
    for name, body in (("body", iter([b"a"])), ("none", None)):
        context = network.context()
        connection = http.client.HTTPSConnection(rig.HOST, network.ports.http, timeout=60, context=context)
        with contextlib.closing(connection):
            headers = {"Authorization": f"Bearer {token}", "X-Request-Id": name}
            chunked = body is not None
            if chunked:
                headers["Transfer-Encoding"] = "chunked"
            connection.request("GET", "/v2/models/first/ready", body, headers, encode_chunked=chunked)
            assert connection.getresponse().status == 200

    def servers() -> dict[str, str | None]:
        lines = network.places.audit.read_text().splitlines()
        return {e["request"]: e["server"] for e in map(json.loads, lines) if e["request"] in ("body", "none")}

    until(lambda: network.places.audit.exists() and len(servers()) == 2)
    assert servers() == {"body": None, "none": "one"}
