from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.order import Precedence
from controlplane.files.gateway import read_order, write_order


def test_an_order_comes_back_as_it_was_written(tmp_path: Path) -> None:
    order = {"a": Precedence("P1", 0, 8, 20, 1000), "b": Precedence("P1", 700, 8, 20, 100)}
    write_order(tmp_path / "order.json", order)
    assert read_order(tmp_path / "order.json") == order


def test_no_file_is_no_order_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    assert read_order(path) == {}
    path.write_text('{"schema_version": 1, "endpoints": [{"endpoint": "a"}]}')
    with pytest.raises(InputError, match=r"order\.json"):
        read_order(path)
