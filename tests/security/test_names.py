"""A request reaches the server of the endpoint that the server reads in it, or is refused.

HAProxy reads the beginning of a message, the facade its fields, a Triton parses it with protobuf. Each of
the two servers has both models, so a request that went to the wrong one would be answered.
"""

import gzip
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any, cast

import gateway_rig as rig
import grpc
import mutations
import pytest
from gateway_clients import SERVICE
from mutations import Corpus
from raw_http2 import call, frame_of
from tritonclient.grpc import service_pb2

from controlplane.domain.fleet import Route

SERVER_OF = {"first": "left", "second": "right"}
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.CANCELLED,
}
"""A Triton says INTERNAL of a message it cannot parse, UNAVAILABLE of a model it has not loaded; HAProxy may
pass on the reset alone that ends a stream with its status (CANCELLED)."""
FAR = 60_000
"""Bytes that put what follows behind all that HAProxy keeps of a message."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    here = tmp_path_factory.mktemp("names")
    models = dict.fromkeys(SERVER_OF, "echo")
    with (
        rig.tritons(here, left=models, right=models) as running,
        rig.a_gateway(here) as (gateway, ports),
    ):
        gateway.commit({name: Route((running[server].backend,)) for name, server in SERVER_OF.items()})
        yield f"{rig.HOST}:{ports.grpc}"


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def name(text: str) -> bytes:
    return b"\x0a" + bytes([len(text)]) + text.encode()


def inputs() -> bytes:
    """All of a request but its name."""
    request = service_pb2.ModelInferRequest(raw_input_contents=[struct.pack("<f", 1)])
    request.inputs.add(name="INPUT", datatype="FP32", shape=[1])
    return bytes(request.SerializeToString())


def unknown(size: int) -> bytes:
    """A field that no request has."""
    return b"\xaa\x06" + varint(size) + bytes(size)


def right_server(answer: bytes) -> bool:
    response = service_pb2.ModelInferResponse.FromString(answer)
    at = [output.name for output in response.outputs].index("SERVER")
    server = response.raw_output_contents[at][4:].decode()
    return SERVER_OF[response.model_name] == server


def outcome(
    address: str, kind: str, message: bytes, compression: Any = None
) -> tuple[grpc.StatusCode, bytes, str]:
    """Status, answer and details of one inference, unary or streamed."""
    with grpc.insecure_channel(address) as channel:
        try:
            if kind == "ModelInfer":
                answer = channel.unary_unary(SERVICE + kind)(message, timeout=30, compression=compression)
                return grpc.StatusCode.OK, answer, ""
            talk = channel.stream_stream(SERVICE + kind)(iter([message]), timeout=30, compression=compression)
            streamed = service_pb2.ModelStreamInferResponse.FromString(next(talk))
        except grpc.RpcError as refusal:
            call = cast(grpc.Call, refusal)
            return call.code(), b"", call.details()
    if streamed.error_message:
        return grpc.StatusCode.NOT_FOUND, b"", streamed.error_message
    return grpc.StatusCode.OK, streamed.infer_response.SerializeToString(), ""


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
@pytest.mark.parametrize("gap", [b"", unknown(FAR)], ids=("near", "far"))
@pytest.mark.parametrize("kind", ["ModelInfer", "ModelStreamInfer"])
def test_a_second_name_is_refused(address: str, kind: str, gap: bytes, compression: Any) -> None:
    message = name("first") + inputs() + gap + name("second")
    code, _, words = outcome(address, kind, message, compression)
    assert (code == grpc.StatusCode.INVALID_ARGUMENT and "more than once" in words) or (
        kind == "ModelStreamInfer" and code == grpc.StatusCode.CANCELLED
    )


@pytest.mark.parametrize("kind", ["ModelConfig", "ModelMetadata", "ModelReady", "ModelStatistics"])
def test_a_question_with_two_names_is_refused(address: str, kind: str) -> None:
    with grpc.insecure_channel(address) as channel:
        ask = channel.unary_unary(SERVICE + kind)
        assert ask(name("first") + b"\x12\x011", timeout=30)
        with pytest.raises(grpc.RpcError) as caught:
            ask(name("first") + name("second"), timeout=30)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("before", [unknown(3), unknown(FAR), b"\x0b\x0a\x06second\x0c", b"\x18\x07"])
def test_what_stands_before_the_name_changes_no_route(address: str, before: bytes) -> None:
    code, answer, _ = outcome(address, "ModelInfer", before + name("first") + inputs())
    assert right_server(answer) if answer else code == grpc.StatusCode.INVALID_ARGUMENT


def test_a_compressed_message_is_not_routed_by_what_it_looks_like(address: str) -> None:
    # A stored block of zlib shows its text, in which HAProxy would find a name.
    shown = b"\x01" + name("first")
    block = b"\x78\x01" + b"\x00" + struct.pack("<HH", len(shown), 0xFFFF ^ len(shown)) + shown
    message = name("second") + inputs()
    body = zlib.compressobj(0)
    packed = body.compress(message) + body.flush()
    for compressed in (block, packed):
        answer = call(
            address, "ModelInfer", frame_of(compressed, compressed=True), {"grpc-encoding": "deflate"}
        )
        assert answer is None or right_server(answer[5:])


@pytest.mark.parametrize("length", [0, 1, 5, 10, 10_000, 2**32 - 1])
def test_a_prefix_that_lies_ends_in_an_answer_or_a_refusal(address: str, length: int) -> None:
    body = frame_of(name("first") + inputs(), length=length) + frame_of(name("second") + inputs())
    answer = call(address, "ModelInfer", body)
    assert answer is None or right_server(answer[5:])


@pytest.mark.parametrize("method", ["ModelInfer", "ModelReady", "ServerLive"])
def test_a_message_that_is_cut_short_ends_its_call(address: str, method: str) -> None:
    # Of an endpoint that HAProxy does not know, so that the facade gets it.
    assert call(address, method, frame_of(name("other"), length=10_000), timeout_s=20) is None


def test_a_malformed_message_ends_its_stream_also_while_an_answer_is_written(address: str) -> None:
    malformed = name("second") + b"\x2a\x7f"
    # One in six met the write of the first answer.
    for _ in range(50):
        call(
            address,
            "ModelStreamInfer",
            frame_of(name("second") + inputs()) + frame_of(malformed),
            timeout_s=20,
        )


@pytest.mark.parametrize(
    "frames", [600, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_mutated_messages_reach_the_server_that_they_name(address: str, frames: int) -> None:
    chance = random.Random(1)
    answered = 0
    for number in range(frames):
        message = _mutated(chance)
        compression = chance.choice([grpc.Compression.NoCompression, grpc.Compression.Gzip])
        kind = "ModelInfer" if number % 4 else "ModelStreamInfer"
        code, answer, words = outcome(address, kind, message, compression)
        if code == grpc.StatusCode.OK:
            assert right_server(answer), message[:200]
            answered += 1
        else:
            assert code in REFUSALS, (code, words, message[:200])
    assert answered > frames // 20, "the mutations leave nothing to route"


@pytest.mark.parametrize(
    "frames", [300, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_mutated_frames_end_in_an_answer_or_a_refusal(address: str, frames: int) -> None:
    whole = [frame_of(name(one) + inputs()) for one in SERVER_OF]
    packed = [frame_of(gzip.compress(name(one) + inputs()), compressed=True) for one in SERVER_OF]
    corpus = Corpus(random.Random(2), [*whole, *packed])
    for _ in range(frames):
        method = corpus.chance.choice(["ModelInfer", "ModelInfer", "ModelStreamInfer", "ModelReady"])
        headers = corpus.chance.choice([{}, {"grpc-encoding": "gzip"}])
        sent = mutations.text(corpus.chance, corpus.choose(), corpus.inputs)
        try:
            answer = call(address, method, sent, headers)
        except TimeoutError:
            pytest.fail(f"{method} has no answer to {sent!r} with {headers}")
        if answer and method == "ModelInfer":
            assert right_server(answer[5:]), sent
        corpus.learn(sent, (method, (answer or b"")[5:25]))


def _mutated(chance: random.Random) -> bytes:
    parts = [name(chance.choice(list(SERVER_OF))), inputs()]
    oddities = [
        name("first"),
        name("second"),
        unknown(3),
        unknown(chance.choice([1000, 20_000, FAR])),
        b"\x18\x07",
        b"\x0b\x0c",
        b"\x0b" + name("second") + b"\x0c",
        b"\x8a\x00\x06second",
        b"\x8a\x80\x80\x80\x10\x06second",
        b"\x0a\x86\x00second",
        b"\x0a\xff\x01second",
        b"\x12\x011",
    ]
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        parts.insert(chance.randrange(len(parts) + 1), chance.choice(oddities))
    message = bytearray(b"".join(parts))
    for _ in range(chance.choice([0, 0, 0, 1, 2])):
        message[chance.randrange(min(len(message), 60))] = chance.randrange(256)
    return bytes(message)
