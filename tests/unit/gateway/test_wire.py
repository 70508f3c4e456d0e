import contextlib

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from controlplane.gateway.facade.wire import Malformed, text_field

FIELDS = st.sampled_from(
    [
        b"\x0a\x01a",
        b"\x0a\x01b",
        b"\x12\x011",
        b"\x3a\x03raw",
        b"\x3a\x03\x0a\x01b",
        b"\x18\x07",
        b"\x08\x01",
        b"\x21fixed 64",
        b"\x2dfx32",
        b"\x8a\x00\x01b",
        b"\x8a\x80\x80\x80\x10\x01b",
        b"\x8a\x80\x80\x80\x80\x80\x80\x80\x80\x01\x01b",
        b"\x0b\x0a\x01b\x0c",
        b"\x0a\x81\x00b",
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\xaa\x06\x01u",
    ]
)
"""Of a request; tags and lengths also in longer forms, groups, and lengths that lie."""


@given(st.text(min_size=1), st.text(), st.text(), st.binary())
def test_reads_what_protobuf_wrote(name: str, version: str, request: str, raw: bytes) -> None:
    message = service_pb2.ModelInferRequest(
        model_name=name, model_version=version, id=request, raw_input_contents=[raw]
    ).SerializeToString()
    assert text_field(message, 1) == name
    assert text_field(message, 2) == version
    assert text_field(message, 3) == request


@settings(max_examples=1000)
@given(st.lists(FIELDS | st.binary(max_size=4), max_size=6).map(b"".join))
def test_reads_what_protobuf_reads_or_refuses(message: bytes) -> None:
    with contextlib.suppress(Malformed, DecodeError):
        found = text_field(message, 1)
        assert found == service_pb2.ModelInferRequest.FromString(message).model_name


def test_fields_of_every_kind_are_passed_over() -> None:
    message = b"\x18\x96\x01" + b"\x21" + b"8" * 8 + b"\x2d" + b"4444" + b"\x12\x03abc" + b"\x0a\x01m"
    assert text_field(message, 1) == "m"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\x0a\x01a\x12\x011\x0a\x01b", "more than once"),
        (b"\x0a\x01a\x0a\x01a", "more than once"),
        (b"\x8a\x00\x01a", "tag"),
        (b"\x00\x01a", "tag"),
        (b"\x0b\x0c", "wire type 3"),
        (b"\x0a\x05abc", "after the message"),
        (b"\x21123", "after the message"),
        (b"\x0a", "does not end"),
        (b"\xff" * 12, "does not end"),
        (b"\x0a\x01\xff", "UTF-8"),
        (b"\x18\x00" * 10_001, "10000 fields"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(message: bytes, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        text_field(message, 1)
