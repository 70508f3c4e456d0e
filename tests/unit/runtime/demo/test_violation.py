"""The forced violation on a history of the test's own."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from controlplane.domain.errors import EngineError
from controlplane.runtime.demo import violation

HIT = cast(Any, SimpleNamespace(partition=SimpleNamespace(id="p", percent=50.0), part=0.4))


class Guard:
    """A guard that redirects once a server has less than a part of its speed."""

    def __init__(self, below: float) -> None:
        self.below = below
        self.asked: list[float] = []

    def slow_down(self, part: float) -> None:
        self.asked.append(part)

    def events(self, *, since_s: float) -> list[Any]:
        moved = bool(self.asked) and self.asked[-1] < self.below
        return [SimpleNamespace(kind="redirect", subject="p", reason="", at_s=since_s)] if moved else []


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(violation, "_HARDER_S", 0.01)
    monkeypatch.setattr(violation, "_GUARDED_S", 0.05)


@pytest.mark.parametrize(("below", "asked"), [(0.5, [0.4]), (0.15, [0.4, 0.2, 0.1])])
def test_a_server_with_speed_to_spare_is_slowed_down_further(below: float, asked: list[float]) -> None:
    """Its first part follows from a time in which other work may have had its core."""
    guard = Guard(below)
    cuts, _ = violation._cut(cast(Any, guard), HIT, guard.slow_down)
    assert guard.asked == pytest.approx(asked)
    assert [cut.percent for cut in cuts] == pytest.approx([50.0 * part for part in asked])


def test_without_a_redirect_it_fails() -> None:
    guard = Guard(0.0)
    with pytest.raises(EngineError, match="no redirect"):
        violation._cut(cast(Any, guard), HIT, guard.slow_down)
    assert len(guard.asked) == 1 + len(violation._HARDER)


def test_a_server_that_cannot_be_slowed_down_at_all_is_an_error() -> None:
    def refused(part: float) -> None:
        raise EngineError("not made slower")

    with pytest.raises(EngineError, match="not made slower"):
        violation._cut(cast(Any, Guard(1.0)), HIT, refused)
