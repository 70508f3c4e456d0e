from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from controlplane.gateway.facade.wire import text_field

pytestmark = pytest.mark.unit


@given(st.text(min_size=1), st.text(), st.text(), st.binary())
def test_reads_what_protobuf_wrote(name: str, version: str, request: str, raw: bytes) -> None:
    message = service_pb2.ModelInferRequest(
        model_name=name, model_version=version, id=request, raw_input_contents=[raw]
    ).SerializeToString()
    assert text_field(message, 1) == name
    assert text_field(message, 2) == (version or None)
    assert text_field(message, 3) == (request or None)


def test_fields_of_every_kind_are_passed_over() -> None:
    message = b"\x18\x96\x01" + b"\x21" + b"8" * 8 + b"\x2d" + b"4444" + b"\x12\x03abc" + b"\x0a\x01m"
    assert text_field(message, 1) == "m"


@given(st.binary(max_size=64))
def test_broken_messages_end_in_nothing_worse_than_none(message: bytes) -> None:
    found = text_field(message, 1)
    assert found is None or isinstance(found, str)


@pytest.mark.parametrize("message", [b"", b"\x0a", b"\x0a\x05abc", b"\x0b", b"\xff" * 12])
def test_what_ends_early_has_no_field(message: bytes) -> None:
    assert text_field(message, 1) is None
