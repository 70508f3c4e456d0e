from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from inss_policy import weights

from controlplane.domain.errors import InputError
from controlplane.files import catalogue
from controlplane.files.policies import BUILT_IN, built_in_policy, read_policy, write_policy

pytestmark = pytest.mark.unit


def test_a_policy_comes_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    write_policy(path, weights(), {"seed": 7})
    back, about = read_policy(path)
    one, other = asdict(weights()), asdict(back)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert about["seed"] == 7
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x05\x06" + b"\0" * 18])
def test_what_is_no_policy_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a policy") as told:
        read_policy(path)
    assert told.value.file == str(path)


def test_a_torn_policy_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    write_policy(path, weights(), {})
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match="not a policy"):
        read_policy(path)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    np.savez(path, about=np.array([{"schema_version": 1}], dtype=object))
    with pytest.raises(InputError, match="not a policy"):
        read_policy(path)


def test_a_missing_policy_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ctl train"):
        read_policy(tmp_path / "none.npz")


def test_the_built_in_policy_is_small_and_says_where_it_is_from() -> None:
    path = Path(catalogue.__file__).parent / BUILT_IN
    told, about = read_policy(path)
    assert asdict(told).keys() == asdict(built_in_policy()).keys()
    assert path.stat().st_size < 2**20
    assert about["seed"] == 1
    assert about["spec_sha256"]
