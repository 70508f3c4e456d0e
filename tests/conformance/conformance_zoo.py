"""Tiny models, one for each feature of a model's configuration that the Python backend serves.

What that backend cannot serve (implicit state, TensorRT's profiles, OpenVINO) is rendered and compared field
by field in `tests/unit/render`.
"""

from dataclasses import dataclass
from pathlib import Path

_MIRROR = '''
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Each output is the input at its place, or zero without one; later versions add to numbers."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.pairs = [(i["name"], o) for i, o in zip(config["input"], config["output"])]
        self.more = int(args["model_version"]) - 1

    def execute(self, requests):
        return [pb_utils.InferenceResponse([self._of(r, i, o) for i, o in self.pairs]) for r in requests]

    def _of(self, request, name, output):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        if tensor is None:
            return pb_utils.Tensor(output["name"], np.zeros([1, 1], dtype=np.float32))
        if output["data_type"] == "TYPE_BF16":
            return pb_utils.Tensor.from_dlpack(output["name"], tensor.to_dlpack())
        values = tensor.as_numpy()
        return pb_utils.Tensor(output["name"], values + self.more if self.more else values)
'''
_ABOUT = '''
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """What the model sees of a request."""

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        seen = {"id": request.request_id(), "flags": request.flags(), "timeout": request.timeout()}
        seen["correlation"] = str(request.correlation_id())
        seen["parameters"] = json.loads(request.parameters() or "{}")
        text = np.array([json.dumps(seen, sort_keys=True).encode()], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", text)])
'''
_SUMS = '''
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """The sum of a sequence's values so far."""

    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            tensors = {one.name(): one.as_numpy().flat[0] for one in request.inputs()}
            value, start = tensors["X"], tensors["START"]
            key = str(request.correlation_id()), tensors.get("CORRID"), tensors["READY"]
            self.sums[key] = float(value) + (0 if start else self.sums.get(key, 0))
            total = np.array([[self.sums[key]]], dtype=np.float32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", total)]))
        return answers
'''
_TICKS = '''
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Answers 0, 1, 2, ... as many as its input says; below 0: an error after one answer."""

    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().flat[0])
            sender = request.get_response_sender()
            for number in range(abs(count)):
                tensor = pb_utils.Tensor("Y", np.array([number], dtype=np.float32))
                sender.send(pb_utils.InferenceResponse([tensor]))
            if count < 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("below zero")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
_AGAIN = '''
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Counts its input down to 0, an answer and an execution for each number: the request is rescheduled."""

    def initialize(self, args):
        self.left = None

    def execute(self, requests):
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            self.left = (float(given.flat[0]) if self.left is None else self.left) - 1
            answer = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full_like(given, self.left))])
            if self.left > 0:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                request.get_response_sender().send(answer)
            else:
                self.left = None
                flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                request.get_response_sender().send(answer, flags=flags)
'''
_CALLS = '''
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Passes its input through another model."""

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        tensor = pb_utils.Tensor("X", pb_utils.get_input_tensor_by_name(request, "X").as_numpy())
        call = pb_utils.InferenceRequest(model_name="step", requested_output_names=["Y"], inputs=[tensor])
        answer = call.exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        return pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(answer, "Y")])
'''
_SEES = '''
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Whether another model is ready."""

    def execute(self, requests):
        ready = np.array([pb_utils.is_model_ready("plain")])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", ready)]) for _ in requests]
'''
_COUNTS = '''
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Counts its requests in a metric of its own."""

    def initialize(self, args):
        kind = pb_utils.MetricFamily.COUNTER
        self.family = pb_utils.MetricFamily(name="own_requests", description="Its own", kind=kind)
        self.counter = self.family.Metric(labels={"of": "counts"})

    def execute(self, requests):
        self.counter.increment(len(requests))
        given = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", one)]) for one in given]
'''
_SLOW = '''
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Takes as many seconds as its input says, unless cancelled; below 0: fails. Counts what it begins."""

    def initialize(self, args):
        kind = pb_utils.MetricFamily.COUNTER
        self.family = pb_utils.MetricFamily(name="begun", description="Begun", kind=kind)
        self.begun = self.family.Metric(labels={"model": args["model_name"]})

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "X")
        seconds = float(tensor.as_numpy().flat[0])
        if seconds < 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("X is below zero"))
        self.begun.increment(1)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if request.is_cancelled():
                cancelled = pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED)
                return pb_utils.InferenceResponse(error=cancelled)
            time.sleep(0.002)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor.as_numpy())])
'''
_FAILS = '''
import numpy as np
import triton_python_backend_utils as pb_utils

CODES = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()

class TritonPythonModel:
    """Fails as its input says, in the words of a lost connection; without a code: how often it did."""

    def initialize(self, args):
        self.failed = 0

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        code = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().flat[0])
        if code in range(1, len(CODES) + 1):
            self.failed += 1
            words = "the connection to its data was closed: connection reset"
            error = pb_utils.TritonError(words, getattr(pb_utils.TritonError, CODES[code - 1]))
            return pb_utils.InferenceResponse(error=error)
        count = np.array([self.failed], dtype=np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", count)])
'''


def _tensors(kind: str, *pairs: tuple[str, str], more: str = "") -> str:
    """One direction's tensors, each a name and its dimensions, with what follows in each of them."""
    return "".join(
        f"{kind} [ {{ name: '{name}' data_type: {datatype} dims: [ {dims} ] {more} }} ]\n"
        for name, typed in pairs
        for datatype, dims in [typed.split()]
    )


def _mirrored(*types: str, more_in: str = "", more_out: str = "") -> str:
    """X, X1, ... in and Y, Y1, ... out, each of a type with its dimension: `TYPE_FP32 4`."""
    names = ["", *map(str, range(1, len(types)))]
    pairs = list(zip(names, types, strict=True))
    return _tensors("input", *((f"X{n}", t) for n, t in pairs), more=more_in) + _tensors(
        "output", *((f"Y{n}", t) for n, t in pairs), more=more_out
    )


_NUMBER = _mirrored("TYPE_FP32 1")
_STARTS = """sequence_batching {{ max_sequence_idle_microseconds: 60000000 {strategy} control_input [
  {{ name: "START" control [ {{ kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }} ] }},
  {{ name: "READY" control [ {{ kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] }} ] }}{more} ] }}
"""
_CORRID = ', { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }'
_NUMERIC = (
    "BOOL",
    *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
    "FP16",
    "FP32",
    "FP64",
)
DATATYPES = (*_NUMERIC, "BYTES")
_STEP = """{{ model_name: "{model}" model_version: -1 input_map {{ key: "X" value: "{x}" }}
  output_map {{ key: "Y" value: "{y}" }} }}"""


def _ensemble(*steps: tuple[str, str, str]) -> str:
    made = ", ".join(_STEP.format(model=model, x=x, y=y) for model, x, y in steps)
    return f"platform: 'ensemble'\nensemble_scheduling {{ step [ {made} ] }}\n{_NUMBER}"


@dataclass(frozen=True)
class Model:
    """The text of a config.pbtxt but for its name, its code, its batch, and other files."""

    config: str
    code: str = _MIRROR
    batch: int = 0
    versions: tuple[int, ...] = (1,)
    labels: str = ""
    file: str = "model.py"


_POLICY = (
    "default_queue_policy { max_queue_size: 8 timeout_action: REJECT default_timeout_microseconds: 20000000"
    " allow_timeout_override: true }"
)
_THREE = "instance_group [ { count: 3 kind: KIND_CPU } ]\n"
MODELS = {
    "plain": Model(_mirrored("TYPE_FP32 -1")),
    "batched": Model(f"dynamic_batching {{}}\n{_mirrored('TYPE_FP32 -1')}", batch=8),
    "types": Model(_mirrored(*(f"TYPE_{t.replace('BYTES', 'STRING')} 2" for t in DATATYPES))),
    "bf16": Model(_mirrored("TYPE_BF16 2")),
    "reshaped": Model(
        _mirrored(
            "TYPE_FP32 4", more_in="reshape { shape: [ 2, 2 ] }", more_out="reshape { shape: [ 2, 2 ] }"
        )
    ),
    "optional": Model(
        _tensors("input", ("X", "TYPE_FP32 1"))
        + _tensors("input", ("X1", "TYPE_FP32 1"), more="optional: true")
        + _tensors("output", ("Y", "TYPE_FP32 1"), ("Y1", "TYPE_FP32 1")),
        batch=4,
    ),
    "ragged": Model(
        f"dynamic_batching {{}}\n{_mirrored('TYPE_FP32 -1', more_in='allow_ragged_batch: true')}", batch=4
    ),
    "labelled": Model(
        _mirrored("TYPE_FP32 3", more_out="label_filename: 'labels.txt'"), labels="a\nb\nc\n", batch=4
    ),
    "direct": Model(f"{_THREE}{_STARTS.format(strategy='direct {}', more=_CORRID)}{_NUMBER}", _SUMS, batch=2),
    "oldest": Model(
        f"{_THREE}{_STARTS.format(strategy='oldest { max_candidate_sequences: 2 }', more=_CORRID)}{_NUMBER}",
        _SUMS,
        batch=4,
    ),
    "iterative": Model(
        "model_transaction_policy { decoupled: true }\nsequence_batching { iterative_sequence: true }\n"
        + _NUMBER,
        _AGAIN,
    ),
    "cached": Model(f"response_cache {{ enable: true }}\n{_NUMBER}", batch=4),
    "ordered": Model(
        f"dynamic_batching {{ preferred_batch_size: [ 2 ] preserve_ordering: true }}\n{_NUMBER}",
        _SLOW,
        batch=2,
    ),
    "ticks": Model(f"model_transaction_policy {{ decoupled: true }}\n{_NUMBER}", _TICKS),
    "streamed": Model(_ensemble(("ticks", "X", "between"), ("after", "between", "Y"))),
    "after": Model(_NUMBER),
    "about": Model(
        _tensors("input", ("X", "TYPE_FP32 1")) + _tensors("output", ("Y", "TYPE_STRING 1")), _ABOUT
    ),
    "counts": Model(_NUMBER, _COUNTS),
    "nested": Model(_ensemble(("inner", "X", "between"), ("step", "between", "Y")), batch=4),
    "inner": Model(_ensemble(("step", "X", "Y")), batch=4),
    "step": Model(_NUMBER, batch=4),
    "calls": Model(_NUMBER, _CALLS, batch=4),
    "sees": Model(_tensors("input", ("X", "TYPE_FP32 1")) + _tensors("output", ("Y", "TYPE_BOOL 1")), _SEES),
    "ranked": Model(
        f"dynamic_batching {{ priority_levels: 3 default_priority_level: 2 {_POLICY} }}\n{_NUMBER}",
        _SLOW,
        batch=1,
    ),
    "short": Model(f"dynamic_batching {{ {_POLICY.replace('8', '1')} }}\n{_NUMBER}", _SLOW, batch=1),
    "unbatched": Model(f"dynamic_batching {{ {_POLICY.replace('8', '1')} }}\n{_NUMBER}", _SLOW),
    "passive": Model(
        f"instance_group [ {{ passive: true kind: KIND_CPU }}, {{ kind: KIND_CPU }} ]\n{_NUMBER}"
    ),
    "versioned": Model(f"version_policy {{ all {{}} }}\n{_NUMBER}", versions=(1, 3)),
    "latest": Model(f"version_policy {{ latest {{ num_versions: 2 }} }}\n{_NUMBER}", versions=(1, 2, 3)),
    "specific": Model(f"version_policy {{ specific {{ versions: [ 1 ] }} }}\n{_NUMBER}", versions=(1, 2)),
    "warmed": Model(
        "model_warmup [ { name: 'w' batch_size: 1 inputs { key: 'X' value { data_type: TYPE_FP32 dims: [ 1 ]"
        f" zero_data: true }} }} }} ]\n{_NUMBER}",
        batch=4,
    ),
    "slow": Model(_NUMBER, _SLOW),
    "fails": Model(_NUMBER, _FAILS),
    "Echo.v1-2_X": Model(
        f"default_model_filename: 'code.py'\nmetric_tags {{ key: 'team' value: 'a b' }}\n{_NUMBER}",
        file="code.py",
    ),
    "texts": Model(f"{_STARTS.format(strategy='direct {}', more='')}{_NUMBER}", _SUMS, batch=2),
    "twice": Model(f"instance_group [ {{ kind: KIND_CPU count: 2 }} ]\n{_NUMBER}", batch=4),
}
ALIAS = "twin"
"""A second workload of `plain`, in its queue; the plain server has a copy of that model."""
ARGUMENTS = (
    "--http-header-forward-pattern=(X-|x-|authorization|cookie).*",
    "--grpc-header-forward-pattern=x-.*",
)
INNER = ("after", "inner", "step")
"""Models that only others call: a plan has no workload of them."""


def write(repository: Path) -> None:
    """Write all models, as a user's repository has them."""
    for name, model in {**MODELS, ALIAS: MODELS["plain"]}.items():
        folder = repository / name
        ensemble = "platform: 'ensemble'" in model.config
        for version in model.versions:
            (folder / str(version)).mkdir(parents=True)
            if not ensemble:
                (folder / str(version) / model.file).write_text(model.code)
        backend = "" if ensemble else 'backend: "python"\n'
        (folder / "config.pbtxt").write_text(f"{backend}max_batch_size: {model.batch}\n{model.config}")
        if model.labels:
            (folder / "labels.txt").write_text(model.labels)


def plan() -> dict[str, object]:
    """Return a plan of two partitions: `nested` and `calls` both execute `step`. The first has a shadow."""
    shadow = {"policy": "hot", "gpu": "cpu-1", "extra_percent": 80, "percent": 80}
    apart = ["calls", "sees"]
    zoo = _partition("zoo", [n for n in MODELS if n not in (*INNER, *apart)], shadow)
    placed = {"cpu-0": [zoo], "cpu-1": [_partition("callers", apart, None, percent=20)]}
    cores = [{"id": core, "type": "cpu", "partitions": partitions} for core, partitions in placed.items()]
    terms = {
        "triton_args": list(ARGUMENTS),
        "schema_version": 1,
        "strategy": "igniter",
        "rule": "half-slo",
        "latency_model": "igniter",
    }
    return {**terms, "gpus": cores}


def _partition(
    name: str, models: list[str], shadow: dict[str, object] | None, *, percent: int = 80
) -> dict[str, object]:
    return {
        "id": name,
        "percent": percent,
        "shadow": shadow,
        "models": [{"model": one, "batch": MODELS[one].batch or 1} for one in models],
        "workloads": [
            {"name": n, "endpoint": n, "model": m, "rate_rps": 1, "slo_ms": 60_000}
            for m in models
            for n in ((m, ALIAS) if m == "plain" else (m,))
        ],
    }
