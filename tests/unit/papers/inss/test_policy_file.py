from __future__ import annotations

import io
from dataclasses import asdict
from importlib import resources

import numpy as np
import pytest

from controlplane.domain.errors import InputError
from controlplane.papers.inss.policy import built_in, read, written


def pickled() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, about=np.array([{"schema_version": 1}], dtype=object))
    return stream.getvalue()


def test_a_policy_comes_back_as_written() -> None:
    back, about = read(written(built_in(), {"seed": 7}), "p.npz")
    one, other = asdict(built_in()), asdict(back)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert about["seed"] == 7


@pytest.mark.parametrize(
    "content", [b"", b"not a zip", b"PK\x05\x06" + b"\0" * 18, written(built_in(), {})[:-200], pickled()]
)
def test_what_is_no_policy_is_named(content: bytes) -> None:
    with pytest.raises(InputError, match="not a policy") as told:
        read(content, "p.npz")
    assert told.value.file == "p.npz"


def test_the_built_in_policy_is_small_and_says_where_it_is_from() -> None:
    raw = resources.files("controlplane.papers.inss").joinpath("policy.npz").read_bytes()
    told, about = read(raw, "policy.npz")
    assert asdict(told).keys() == asdict(built_in()).keys()
    assert len(raw) < 2**20
    assert about["seed"] == 1
    assert about["spec_sha256"]
