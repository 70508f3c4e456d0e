"""Rates from a Prometheus server, by one instant query."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from controlplane.domain.errors import EngineError, InputError

LABELS = ("workload", "endpoint", "model")
"""The labels that may name a workload, best first."""
_TIMEOUT_S = 10.0


def query(url: str, text: str) -> Mapping[str, float]:
    """Return the value of each series by what its label names.

    Raises InputError for a URL or query that cannot be used, EngineError where the server does not answer.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url!r} is not the URL of a Prometheus server", field="--rates")
    if parts.username is not None or parts.password is not None:
        raise InputError("must hold no credentials: everyone sees a command line", field="--rates")
    try:
        answer = httpx.get(f"{url.rstrip('/')}/api/v1/query", params={"query": text}, timeout=_TIMEOUT_S)
        content: Any = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise EngineError(f"{parts.hostname}: no answer to a query: {error!r}") from error
    if not isinstance(content, dict) or content.get("status") != "success":
        problem = content.get("error") if isinstance(content, dict) else None
        raise InputError(f"the server refuses it: {problem or answer.status_code}", field="--query")
    return _rates(content.get("data"))


def _rates(data: Any) -> Mapping[str, float]:
    if not isinstance(data, dict) or data.get("resultType") != "vector":
        raise InputError("must give an instant vector, one value a workload", field="--query")
    rates: dict[str, float] = {}
    for series in data["result"]:
        name = next((series["metric"][label] for label in LABELS if label in series["metric"]), None)
        if name is None:
            labels = ", ".join(LABELS[:-1])
            raise InputError(
                f"must keep one of the labels {labels} and {LABELS[-1]}: `sum by (endpoint) (...)`",
                field="--query",
            )
        if name in rates:
            raise InputError(f"gives {name!r} twice; sum the series", field="--query")
        value = float(series["value"][1])
        if math.isfinite(value) and value > 0.0:
            rates[name] = value
    return rates
