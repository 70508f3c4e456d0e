"""The traffic of a measurement: requests, and the way in which they are sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelSequenceBatching
from tritonclient.grpc.service_pb2 import ModelInferRequest

from controlplane.profiler.sweep import in_flight

SEQUENCE = 4_611_686_018_427_387_847
"""The id of the one sequence that is under way."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of one inference each, sent in turn.

    `streamed`: a decoupled model, which answers on a stream, any number of times. `in_sequence`: the requests
    are whole sequences, of which one runs after another, because only one server knows a sequence's state.
    `in_steps`: each request is a sequence by itself, which the model executes step by step.
    `steps`: the models that an ensemble's requests pass, as Triton counts no batches of an ensemble.
    """

    requests: tuple[ModelInferRequest, ...]
    streamed: bool = False
    in_sequence: bool = False
    in_steps: bool = False
    steps: tuple[str, ...] = ()

    def ends(self) -> tuple[bool, ...]:
        """Return after which requests the traffic may end: with the last one of a sequence."""
        whole = not self.in_sequence or self.in_steps
        return tuple(whole or r.parameters["sequence_end"].bool_param for r in self.requests)

    def in_flight(self, batch: int) -> int:
        """Return how many requests keep the server busy with batches of `batch`."""
        return 1 if self.in_sequence else in_flight(batch)


def whole_sequences(
    sequences: Sequence[Sequence[ModelInferRequest]], config: ModelConfig
) -> tuple[ModelInferRequest, ...]:
    """Return the requests of sequences one after another, each marked as its first, last or in between."""
    return tuple(
        marked
        for requests in sequences
        for marked in _marked(requests, SEQUENCE, as_text=_has_text_ids(config))
    )


def _marked(
    requests: Sequence[ModelInferRequest], sequence: int, *, as_text: bool
) -> Iterator[ModelInferRequest]:
    for i, request in enumerate(requests):
        marked = ModelInferRequest()
        marked.CopyFrom(request)
        if as_text:
            marked.parameters["sequence_id"].string_param = str(sequence)
        else:
            marked.parameters["sequence_id"].int64_param = sequence
        marked.parameters["sequence_start"].bool_param = i == 0
        marked.parameters["sequence_end"].bool_param = i == len(requests) - 1
        yield marked


def _has_text_ids(config: ModelConfig) -> bool:
    controls = (c for given in config.sequence_batching.control_input for c in given.control)
    ids = ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID
    return any(c.kind == ids and c.data_type == DataType.TYPE_STRING for c in controls)
