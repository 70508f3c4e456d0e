"""The fleet's own inferences are left out of what clients read, whatever comes of them."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from controlplane.domain.errors import EngineError
from controlplane.domain.observation import Entry
from controlplane.files.gateway.discounts import add_discounts, read_discounts
from controlplane.triton import own
from controlplane.triton.samples import SampleRequest

REQUEST = SampleRequest(b"", 0, True, ("m", "step"))
NS = 7


class Triton:
    """Counts as one: `beside` requests of clients end with each inference; `answer` is what comes of it.

    An error counts as a success where Python's code `says` it.
    """

    def __init__(self, answer: Exception | None = None, *, beside: int = 0, says: bool = False) -> None:
        self.answer = answer
        self.beside = beside
        self.says = says
        self.succeeded = dict.fromkeys(REQUEST.models, 0)
        self.failed = dict.fromkeys(REQUEST.models, 0)

    def counters(self, model: str) -> list[Entry]:
        done = self.succeeded[model]
        stats = {"success": {"count": done, "ns": done * NS}, "fail": {"count": self.failed[model], "ns": 0}}
        counts = {"inference_count": done, "execution_count": done, "last_inference": 5}
        return [
            {"name": model, "version": "1", "inference_count": 0},
            {"name": model, "version": "10", **counts, "inference_stats": stats},
        ]

    def infer(self, endpoint: str, request: SampleRequest) -> None:
        for model in request.models:
            self.succeeded[model] += self.beside
            if self.answer is None or self.says:
                self.succeeded[model] += 1
            elif self.answer.__cause__ is None:
                self.failed[model] += 1
        if self.answer is not None:
            raise self.answer


def left_out(folder: Path, triton: Triton) -> dict[str, Any]:
    """Run an inference, and return what is left out of one model's counters in all."""

    try:
        own.infer(cast(Any, triton), "m", REQUEST, partial(add_discounts, folder, "s"))
    except EngineError:
        assert triton.answer is not None
    found = read_discounts(folder, "s")
    assert {key: dict(entry, name="") for key, entry in found.items()}.keys() == {("m", "10"), ("step", "10")}
    entry = found["m", "10"]
    return {
        "inferences": entry["inference_count"],
        **{f"{e} {u}": n for e, t in entry["inference_stats"].items() for u, n in t.items() if n},
    }


SUCCEEDED = {"inferences": 1, "success count": 1, "success ns": NS}
FAILED = {"inferences": 0, "fail count": 1}


@pytest.mark.parametrize(
    ("triton", "found"),
    [
        (Triton(), SUCCEEDED),
        (Triton(beside=9), SUCCEEDED),
        (Triton(EngineError("refused")), FAILED),
        (Triton(EngineError("refused"), beside=9), FAILED),
        (Triton(EngineError("below zero"), beside=9, says=True), SUCCEEDED),
    ],
    ids=["alone", "beside clients", "failed", "failed beside clients", "an error that counts as a success"],
)
def test_one_is_left_out_as_it_ended_and_takes_none_of_the_clients(
    tmp_path: Path, triton: Triton, found: dict[str, int]
) -> None:
    assert left_out(tmp_path, triton) == found


def test_each_is_left_out_with_its_times(tmp_path: Path) -> None:
    triton = Triton()
    left_out(tmp_path, triton)
    assert left_out(tmp_path, triton) == {"inferences": 2, "success count": 2, "success ns": 2 * NS}


def test_a_late_one_is_left_out_before_it_is_counted(tmp_path: Path) -> None:
    late = EngineError("late")
    late.__cause__ = TimeoutError()
    assert left_out(tmp_path, Triton(late)) == {"inferences": 1, "success count": 1}


def test_a_server_that_counts_from_0_again_has_nothing_left_out_of_before(tmp_path: Path) -> None:
    for _ in range(3):
        add_discounts(tmp_path, "s", None)
        found = left_out(tmp_path, Triton())
    assert found == SUCCEEDED


def test_one_runs_where_no_counters_are_to_be_had(tmp_path: Path) -> None:
    triton = Triton()
    triton.counters = lambda model: []  # type: ignore[method-assign]
    own.infer(cast(Any, triton), "m", REQUEST, lambda counters: None)
    assert triton.succeeded["m"] == 1


def test_what_is_left_out_stays_the_same_however_often_it_is_added_and_a_cut_line_is_none(
    tmp_path: Path,
) -> None:
    for _ in range(1000):
        add_discounts(tmp_path, "s", [{"name": "m", "version": "1", "inference_count": 1}])
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 20_000
    file.write_bytes(file.read_bytes() + b'[{"name": "m"')
    add_discounts(tmp_path, "s", [{"name": "m", "version": "1", "inference_count": -1}])
    assert read_discounts(tmp_path, "s")["m", "1"]["inference_count"] == 999
    add_discounts(tmp_path, "s", None)
    assert read_discounts(tmp_path, "s") == {}
