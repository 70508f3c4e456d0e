"""POST over HTTP: bodies, their headers, and what is asked of a repository."""

import gzip
import json
from functools import partial
from typing import Any

from conformance_zoo import INNER

from conformance_calls.case import Cases, Target
from conformance_calls.inferences import TYPED

CASES = Cases()
PLAIN = "/v2/models/plain/infer"
BODY = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[2],"data":[5,6]}]}'
_ABOUT, _INDEX = "/v2/models/about/infer", "/v2/repository/index"
_TICKS, _GENERATE = "/v2/models/ticks/generate", "/v2/models/plain/generate"
_LENGTH, _ENCODING = "Inference-Header-Content-Length", "Content-Encoding"
_SINGLE = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[5]}]}'
_DEEP = b'{"parameters":' + b'{"a":' * 70 + b"1" + b"}" * 70 + b"," + BODY[1:]
_JSON = {"BYTES": lambda value: value.decode(), "BOOL": bool}
_LISTED = [
    {"name": name, "datatype": kind, "shape": [2], "data": [_JSON.get(kind, int)(one) for one in values]}
    for name, (kind, values) in TYPED.items()
    if kind != "FP16"
]


def _large(values: str) -> bytes:
    """JSON that no buffer of HAProxy holds."""
    return BODY.replace(b"[5,6]", b" " * 50_000 + values.encode())


_EQUAL: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "JSON": (PLAIN, BODY, {}),
    "JSON of all datatypes": ("/v2/models/types/infer", json.dumps({"inputs": _LISTED}).encode(), {}),
    "no JSON": (PLAIN, b"{bad", {}),
    "no body": (PLAIN, b"", {}),
    "a gzipped body": (PLAIN, gzip.compress(BODY), {_ENCODING: "gzip"}),
    "an unknown encoding": (PLAIN, BODY, {_ENCODING: "br"}),
    "an encoding in capitals": (PLAIN, gzip.compress(BODY), {_ENCODING: "GZIP"}),
    "Expect": (PLAIN, BODY, {"Expect": "100-continue"}),
    "1,000 headers": (PLAIN, BODY, {f"y-{i}": "v" for i in range(1000)}),
    "a wrong length of the JSON": (PLAIN, BODY, {_LENGTH: "900"}),
    "large JSON": (PLAIN, _large("[5,6]"), {}),
    "large JSON that is cut": (PLAIN, _large("[5,6]")[:-3], {}),
    "large JSON with forwarded headers": (_ABOUT, _large("[5]").replace(b"[2]", b"[1]"), {"x-user": "u1"}),
    "large JSON of numbers that are none": (PLAIN, _large("[NaN,-Infinity]"), {}),
    "numbers that are none": (PLAIN, BODY.replace(b"5,6", b"NaN,Infinity"), {}),
    "numbers that are large": (PLAIN, BODY.replace(b"5,6", b"1e400,-1e-400"), {}),
    "a mark before its JSON": (PLAIN, b"\xef\xbb\xbf" + BODY, {}),
    "text behind its JSON": (PLAIN, BODY + b" x", {}),
    "a field twice": (PLAIN, BODY.replace(b"}]}", b'}],"id":"a","id":"b"}'), {}),
    "a name that is no UTF-8": (PLAIN, BODY.replace(b'"X"', b'"\xff"'), {}),
    "an id of many letters": (PLAIN, BODY.replace(b"}]}", '}],"id":"\u00e4\U0001f600\\u0000"}'.encode()), {}),
    "raw values": (PLAIN, bytes(8), {_LENGTH: "0"}),
    "raw values of two inputs": ("/v2/models/optional/infer", bytes(8), {_LENGTH: "0"}),
    "a length of the JSON below zero": (PLAIN, BODY, {_LENGTH: "-1"}),
    "a length of the JSON that is none": (PLAIN, BODY, {_LENGTH: "x"}),
    "generate of a gzipped body": (_GENERATE, gzip.compress(b'{"X":[7]}'), {_ENCODING: "gzip"}),
    "generate of an unknown encoding": (_GENERATE, b'{"X":[7]}', {_ENCODING: "br"}),
    "events of a gzipped body": (f"{_TICKS}_stream", gzip.compress(b'{"X":[2]}'), {_ENCODING: "gzip"}),
    "generate of large JSON": (_GENERATE, b'{"X":[7]' + b" " * 50_000 + b"}", {}),
    "generate with parameters": (
        "/v2/models/about/generate",
        b'{"X":1,"parameters":{"a":1,"b":"c"},"d":true}',
        {},
    ),
    "events of large JSON": (f"{_TICKS}_stream", b'{"X":[4]' + b" " * 50_000 + b"}", {}),
    "generate": (_GENERATE, b'{"X":[7]}', {}),
    "generate, without its input": (_GENERATE, b"{}", {}),
    "generate of a decoupled model": (_TICKS, b'{"X":[2]}', {}),
    "server-sent events": (f"{_TICKS}_stream", b'{"X":[4]}', {}),
    "server-sent events of a plain model": ("/v2/models/plain/generate_stream", b'{"X":[4]}', {}),
    "an error among server-sent events": (f"{_TICKS}_stream", b'{"X":[-1]}', {}),
    "forwarded headers": (_ABOUT, _SINGLE, {"x-user": "u1"}),
    "loading from a repository": ("/v2/repository/x/models/plain/load", b"", {}),
}
_DIFFERENT: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "broken-compression": (PLAIN, BODY, {_ENCODING: "gzip"}),
    "answers-uncompressed": (PLAIN, BODY, {"Accept-Encoding": "gzip"}),
    "long-headers": (PLAIN, BODY, {"y": "v" * 8192}),
    "deep-json": (PLAIN, _DEEP, {}),
    "header-case": (_ABOUT, _SINGLE, {"X-User": "u1"}),
    "header-blanks": (_ABOUT, _SINGLE, {"x-user": "u1  "}),
    "index-words": (_INDEX, gzip.compress(b'{"ready":true}'), {_ENCODING: "gzip"}),
    "loading": ("/v2/repository/models/plain/load", b"", {}),
}
"""By the row that each shows."""
for _posts in (_EQUAL, _DIFFERENT):
    for _name, _post in _posts.items():
        _call = partial(Target.raw, method="POST", path=_post[0], body=_post[1], headers=_post[2])
        CASES.add(f"http: {_name}", _call, _name if _posts is _DIFFERENT else None)


def _index(target: Target, path: str, body: bytes | None) -> Any:
    """Without models that only others call, which are no endpoints of a fleet; a server's order is none."""
    status, headers, said = answer = target.raw("POST", path, body)
    if status != 200:
        return answer
    entries = [one for one in json.loads(said) if one["name"] not in INNER]
    return status, [h for h in headers if h[0] != "Content-Length"], sorted(entries, key=str)


CASES.add("http: the index of a repository", partial(_index, path="/v2/repository/x/index", body=None))
for _value in ('{"ready":3}', '{"ready":"yes"}', '{"ready":null}', "null", "[1]", "3", '{"ready":false}'):
    _of_index = partial(_index, path=_INDEX, body=_value.encode())
    CASES.add(f"http: index {_value}", _of_index)
