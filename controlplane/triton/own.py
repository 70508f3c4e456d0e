"""Inferences of the fleet itself, which clients' statistics leave out: proofs of servers, and canaries.

Triton counts them as any other. So its counters are read before and after each one, and the difference is
noted where those that answer clients find it (`controlplane.files.gateway.discounts`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from controlplane.domain.errors import EngineError
from controlplane.domain.fleet import Server
from controlplane.domain.observation import Entry, combine, difference
from controlplane.files.waiting import wait_until
from controlplane.triton.client import TritonClient, timed_out
from controlplane.triton.samples import SampleRequest, sample_request

Discount = Callable[[Sequence[Entry]], None]
"""Adds counters to what is left out of a server's."""

_WAY_OUT = (
    "the input was generated: zeros, and 1 for a variable dimension of which no shape is known; `ctl profile "
    "--shape` on this host gives the shape, `model_warmup` in the model's config.pbtxt a whole input"
)
_COUNTED_S = 0.25
"""The longest wait for counters: a Triton sends an answer before it counts it."""
_COUNTED = ("name", "version", "inference_count", "execution_count")
_TABLES = ("inference_stats", "batch_stats", "response_stats")


def infer(client: TritonClient, endpoint: str, request: SampleRequest, discount: Discount) -> None:
    """Run an inference. Raises EngineError.

    It is left out before it is sent: a late one is counted at an unknown time, and a reader in between finds
    one too few, which it takes for a counter that waits, rather than one too many.
    """
    before = _read(client, request)
    expected = [_once(entry) for entry in before]
    discount(expected)
    try:
        client.infer(endpoint, request)
    except EngineError as error:
        if not timed_out(error):
            after = _read_counted(client, request, lambda now: _ended(now, before))
            discount(_corrections(expected, before, after, succeeded=False))
        raise
    after = _read_counted(client, request, lambda now: _executed(now, before))
    discount(_corrections(expected, before, after, succeeded=True))


def prove(server: Server, endpoint: str, discount: Discount, *, deadline_s: float) -> None:
    """Run one inference on `endpoint`, of the model's sample or of zeros. Raises EngineError."""
    generated = False
    try:
        with TritonClient(server, deadline_s=deadline_s) as client:
            request = sample_request(endpoint, server.spec.repository, client.config)
            generated = request.json_length is not None and request.generated
            infer(client, endpoint, request, discount)
    except EngineError as error:
        way_out = f" ({_WAY_OUT})" if generated and error.__cause__ is None else ""
        raise EngineError(
            f"{server.name}: an inference on {endpoint} failed: {error}{way_out}"
        ) from error.__cause__


def _read(client: TritonClient, request: SampleRequest) -> list[Entry]:
    """Return the counters of each model's latest version, which executes; none where one cannot be read."""
    found = []
    with contextlib.suppress(EngineError, LookupError, ValueError):
        for model in request.models:
            found.append(max(client.counters(model), key=lambda entry: int(entry["version"])))
        return found
    return []


def _read_counted(
    client: TritonClient, request: SampleRequest, counted: Callable[[list[Entry]], bool]
) -> list[Entry]:
    """Return the counters once they have those of the inference that ended."""
    after: list[Entry] = []

    def read() -> bool:
        after[:] = _read(client, request)
        return counted(after)

    wait_until(read, deadline_s=_COUNTED_S, interval_s=0.005)
    return after


def _executed(after: Sequence[Entry], before: Sequence[Entry]) -> bool:
    return all(
        other[key] > one[key]
        for one, other in zip(before, after, strict=False)
        for key in ("inference_count", "execution_count")
    )


def _ended(after: Sequence[Entry], before: Sequence[Entry]) -> bool:
    """Return whether the endpoint, which comes first, has counted it: an error of Python is a success."""
    return not (before and after) or _requests(after[0]) > _requests(before[0])


def _once(entry: Entry) -> Entry:
    """Return one inference of a model, whose times are not known yet."""
    same = {key: entry[key] for key in ("name", "version")}
    success = {"success": {"count": 1, "ns": 0}}
    return {**same, "inference_count": 1, "execution_count": 1, "inference_stats": success}


def _requests(entry: Entry) -> int:
    stats = entry["inference_stats"]
    return sum(int(stats.get(end, {}).get("count", 0)) for end in ("success", "fail"))


def _corrections(
    expected: Sequence[Entry], before: Sequence[Entry], after: Sequence[Entry], *, succeeded: bool
) -> list[Entry]:
    """Return what was counted beyond what was expected, which may be less."""
    found = []
    for once, one, other in zip(expected, before, after, strict=False):
        counted = difference(other, one)
        moved = {key: counted[key] for key in (*_COUNTED, *_TABLES) if key in counted}
        requests = _requests(moved)
        # An ensemble, which executes nothing, counts a failure twice.
        alone = 1 if succeeded or moved["execution_count"] else 2
        if requests > alone or (succeeded and not requests):
            # With clients' requests among them, or of a Triton that has not counted yet.
            moved = _mean(once, moved, failed=not succeeded)
        found.append(combine(moved, once, lambda mine, theirs: mine - theirs))
    return found


def _mean(once: Entry, moved: Entry, *, failed: bool) -> Entry:
    """Return one inference with the mean times of several; an error of Python's code counts as a success."""
    means = {
        name: {"count": 1, "ns": total["ns"] // total["count"]}
        for name, total in moved["inference_stats"].items()
        if total.get("count")
    }
    failure = means.pop("fail", None)
    if failed and failure is not None:
        return {**once, **dict.fromkeys(_COUNTED[2:], 0), "inference_stats": {"fail": failure}}
    return combine({**once, "inference_stats": {}}, {"inference_stats": means or once["inference_stats"]})
