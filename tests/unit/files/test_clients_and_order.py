from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.serving import Precedence
from controlplane.files.gateway import read_order, write_order
from controlplane.files.gateway.access import (
    Client,
    check_client,
    hashed,
    operates_with,
    read_clients,
    write_clients,
)

ONE = Client("one", ("a", "b"), token_sha256=hashed("secret"), max_rate_rps=5)
TWO = Client("two", ("*",), certificate="two.example", operator=True)


def test_clients_come_back_as_they_were_written_and_only_their_user_can_read_them(tmp_path: Path) -> None:
    path = tmp_path / "clients.json"
    assert read_clients(path) == ()
    write_clients(path, (ONE, TWO))
    assert read_clients(path) == (ONE, TWO)
    assert "secret" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("client", "field"),
    [
        (Client("", ("a",)), "NAME"),
        (Client("a b", ("a",)), "NAME"),
        (Client("a/b", ("a",)), "NAME"),
        (Client("x" * 65, ("a",)), "NAME"),
        (Client("a", ("a",), certificate="CN=x"), "--certificate"),
        (Client("a", ()), "--endpoint"),
        (Client("a", ("b c",)), "--endpoint"),
    ],
)
def test_what_no_map_can_hold_is_refused(client: Client, field: str) -> None:
    with pytest.raises(InputError) as caught:
        check_client(client)
    assert caught.value.field == field


def test_only_an_operators_token_operates() -> None:
    operator = Client("op", (), token_sha256=hashed("t"), operator=True)
    assert operates_with("Bearer t", None, (ONE, operator))
    assert operates_with("bearer  t ", None, (ONE, operator))
    for wrong in ("", "t", "Basic t", "Bearer secret", "Bearer ", "Bearer T"):
        assert not operates_with(wrong, None, (ONE, TWO, operator))


def test_an_order_comes_back_as_it_was_written_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    assert read_order(path) == {}
    order = {"a": Precedence("P1", 0, 8, 20, 1000), "b": Precedence("P1", 700, 8, 20, 100)}
    write_order(path, order)
    assert read_order(path) == order
    path.write_text('{"schema_version": 1, "endpoints": [{"endpoint": "a"}]}')
    with pytest.raises(InputError, match=r"order\.json"):
        read_order(path)
