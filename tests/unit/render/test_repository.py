from dataclasses import replace
from pathlib import Path

import build
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Partition, Plan, PlannedGpu, Rule
from controlplane.files.models import write_completed
from controlplane.files.pinned import Pin
from controlplane.files.rendered import Link, Tree
from controlplane.render.config import TURN
from controlplane.render.repository import (
    live_batches,
    partition_sources,
    partition_tree,
    profiling_tree,
    refuse_large_requests,
    refuse_pooled_sequences,
    render_partition,
    takes_turns,
    together,
)
from controlplane.render.source import pinned_at, read_source, to_complete

TENSORS = """
input [ { name: "X", data_type: TYPE_FP32, dims: [ 2, 2 ], reshape { shape: [ 4 ] } } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ -1 ], label_filename: "labels.txt" } ]
"""


def partition(*endpoints: str, model: str = "m", batch: int = 4) -> Partition:
    return build.partition("P1", 50.0, *endpoints, model=model, batch=batch)


def tree_of(repository: Path, served: Partition) -> Tree:
    return render_partition(served, gpu_type="cpu", repository=repository)


def write(repository: Path, config: str, model: str = "m") -> None:
    (repository / model / "config.pbtxt").write_text(config)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("m", "other"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "2").mkdir()
        (tmp_path / name / "labels.txt").write_text("cat\n")
        (tmp_path / name / ".hidden").write_text("")
        (tmp_path / name / "config.pbtxt").write_text(f'backend: "b"\nmax_batch_size: 8\n{TENSORS}')
    return tmp_path


def test_the_model_is_linked_under_its_endpoint(repository: Path) -> None:
    tree = tree_of(repository, partition("W1", "W2"))
    assert set(tree.entries) == {
        f"{endpoint}/{name}" for endpoint in ("W1", "W2") for name in ("config.pbtxt", "1", "2", "labels.txt")
    }
    assert tree.entries["W1/2"] == Link(str(repository / "m" / "2"))
    assert _config(tree, "W2").name == "W2"


def test_a_queue_policy_that_contradicts_the_spec_is_refused_in_its_file(repository: Path) -> None:
    file = repository / "m" / "config.pbtxt"
    with file.open("a") as config:
        config.write("dynamic_batching { default_queue_policy { timeout_action: DELAY } }")
    part = partition("W1")
    tree_of(repository, part)
    drops = replace(part, workloads=(replace(part.workloads[0], drop_after_ms=5.0),))
    with pytest.raises(InputError) as refused:
        tree_of(repository, drops)
    assert refused.value.file == str(file)


@pytest.mark.parametrize("most", [0, 8])
def test_requests_larger_than_the_model_takes_are_refused(repository: Path, most: int) -> None:
    write(repository, f'backend: "b" max_batch_size: {most}')

    def plan(client_batch: int) -> Plan:
        part = partition("W1", batch=16)
        sent = replace(part, workloads=(replace(part.workloads[0], client_batch=client_batch),))
        return Plan("joint", Rule.P99, "ours", (PlannedGpu("g", "cpu", (sent,)),))

    says = f"'W1' sends 16 inferences in a request, and the model takes {max(most, 1)} at most"
    with pytest.raises(InputError, match=says) as refused:
        refuse_large_requests(plan(16), repository)
    assert refused.value.file == str(repository / "m" / "config.pbtxt")
    assert refused.value.field == "max_batch_size"
    refuse_large_requests(plan(max(most, 1)), repository)


def test_the_workloads_of_one_model_are_one_model_and_aliases_of_it(repository: Path) -> None:
    write(
        repository,
        f'backend: "b" max_batch_size: 8 {TENSORS} model_warmup [ {{ name: "w" batch_size: 1 }} ]'
        'parameters { key: "a" value { string_value: "1" } } model_transaction_policy { decoupled: true }',
    )
    tree = tree_of(repository, partition("W2", "W3", "W1"))
    model, alias, other = (_config(tree, endpoint) for endpoint in ("W1", "W2", "W3"))
    assert model.dynamic_batching.preferred_batch_size == [4], "the first name bears the model"
    assert not model.HasField("ensemble_scheduling")
    assert (alias.platform, alias.name, other.name) == ("ensemble", "W2", "W3")
    [step] = alias.ensemble_scheduling.step
    assert (step.model_name, step.model_version) == ("W1", -1)
    assert (dict(step.input_map), dict(step.output_map)) == ({"X": "X"}, {"Y": "Y"})
    assert not alias.input[0].HasField("reshape"), "clients send the shape before it"
    model.input[0].ClearField("reshape")
    for shown in ("max_batch_size", "input", "output", "parameters", "model_transaction_policy"):
        assert getattr(alias, shown) == getattr(model, shown)
    for own in ("dynamic_batching", "instance_group", "model_warmup", "backend"):
        model.ClearField(own)
        assert getattr(alias, own) == getattr(model, own)


def test_the_order_of_the_workloads_changes_nothing(repository: Path) -> None:
    assert tree_of(repository, partition("W1", "W2")) == tree_of(repository, partition("W2", "W1"))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (f"sequence_batching {{ }} {TENSORS}", "sequence_batching: .* sequences of its own"),
        ("max_batch_size: 8", "write them down"),
        (f"version_policy {{ all {{ }} }} {TENSORS}", "one version"),
        (f"version_policy {{ latest {{ num_versions: 2 }} }} {TENSORS}", "one version"),
        ('input [ { name: "S" is_shape_tensor: true } ] output [ { name: "Y" } ]', "TensorRT"),
    ],
)
def test_a_model_that_has_no_alias_is_refused_with_the_way_out(
    repository: Path, config: str, reason: str
) -> None:
    write(repository, f'backend: "b" {config}')
    shared = partition("a", "b", "c")
    named = tuple(replace(w, name=f"W-{w.endpoint}") for w in shared.workloads)
    with pytest.raises(InputError, match=reason) as refused:
        tree_of(repository, replace(shared, workloads=named))
    assert "workloads W-a, W-b and W-c cannot share one queue of model 'm'" in refused.value.problem
    assert "`isolated: true` at each of them in the spec" in refused.value.problem
    assert refused.value.file == str(repository / "m" / "config.pbtxt")
    assert refused.value.exit_code == 2
    tree_of(repository, partition("W1"))


def test_one_version_of_several_may_be_shared(repository: Path) -> None:
    write(repository, f'backend: "b" version_policy {{ specific {{ versions: 1 }} }} {TENSORS}')
    tree = tree_of(repository, partition("W1", "W2"))
    assert _config(tree, "W2").version_policy == _config(tree, "W1").version_policy


def _config(tree: Tree, endpoint: str) -> ModelConfig:
    text = tree.entries[f"{endpoint}/config.pbtxt"]
    assert isinstance(text, str)
    return text_format.Parse(text, ModelConfig())


def test_the_hash_changes_with_the_text_and_with_nothing_else(repository: Path) -> None:
    def content_hash(served: Partition) -> str:
        return tree_of(repository, served).content_hash

    assert content_hash(partition("W1")) == content_hash(partition("W1"))
    assert content_hash(partition("W1")) != content_hash(partition("W1", batch=5))
    assert content_hash(partition("W1")) != content_hash(partition("W1", model="other"))
    before = content_hash(partition("W1"))
    write(repository, 'backend: "b"\nmax_batch_size: 7\n')
    assert content_hash(partition("W1")) != before


@pytest.mark.parametrize("name", ["a/b", "../m", "..", "", "m\n"])
def test_a_name_that_leaves_the_repository_is_refused(repository: Path, name: str) -> None:
    with pytest.raises(InputError, match="is not a valid name"):
        read_source(repository, name)
    with pytest.raises(InputError, match="is not a valid name"):
        tree_of(repository, partition(name))


def test_a_missing_directory_names_the_nearest(repository: Path) -> None:
    with pytest.raises(InputError, match=r"othr: model: .*did you mean 'other'"):
        read_source(repository, "othr")
    with pytest.raises(InputError, match="--repository"):
        read_source(repository / "nowhere", "m")


def test_a_directory_without_configuration_or_version_is_refused(repository: Path) -> None:
    (repository / "m" / "config.pbtxt").unlink()
    with pytest.raises(
        InputError, match=r"m/config\.pbtxt: is missing, and Triton has not completed it yet: `ctl init`"
    ):
        read_source(repository, "m")
    for version in ("1", "2"):
        (repository / "other" / version).rmdir()
    with pytest.raises(InputError, match="has no version"):
        read_source(repository, "other")


def test_a_broken_configuration_names_file_and_line(repository: Path) -> None:
    file = repository / "m" / "config.pbtxt"
    file.write_text('backend: "b"\n\nmax_batch_sise: 4\n')
    with pytest.raises(InputError, match="max_batch_sise") as caught:
        read_source(repository, "m")
    assert (caught.value.file, caught.value.line) == (str(file), 3)


def test_an_endpoint_twice_or_a_model_not_served_is_refused(repository: Path) -> None:
    with pytest.raises(InputError, match="twice"):
        tree_of(repository, partition("W1", "W1"))
    unserved = Partition("P1", 50, models=(), workloads=partition("W1").workloads)
    with pytest.raises(InputError, match="lists no model 'm'"):
        tree_of(repository, unserved)


def test_only_one_partition_may_serve_a_model_with_sequences(repository: Path) -> None:
    def plan(*ids: str) -> Plan:
        served = (replace(partition("W1"), id=name) for name in ids)
        gpus = tuple(PlannedGpu(f"cpu-{i}", "cpu", (one,)) for i, one in enumerate(served))
        return Plan("joint", Rule.P99, "ours", gpus)

    refuse_pooled_sequences(plan("W1-1", "W1-2"), repository)
    write(repository, 'backend: "b" sequence_batching { }')
    refuse_pooled_sequences(plan("W1"), repository)
    with pytest.raises(
        InputError, match=r"'W1' is served by a pool \(W1-1, W1-2\).*`isolated: true`"
    ) as told:
        refuse_pooled_sequences(plan("W1-1", "W1-2"), repository)
    assert told.value.exit_code == 2


def write_ensemble(repository: Path) -> None:
    """Write the ensemble `e` of the models `m` and `other`."""
    steps = 'step [ { model_name: "m" model_version: -1 }, { model_name: "other" model_version: -1 } ]'
    (repository / "e" / "1").mkdir(parents=True)
    (repository / "e" / "config.pbtxt").write_text(
        f'platform: "ensemble" max_batch_size: 8 {TENSORS} ensemble_scheduling {{ {steps} }}'
    )


def resources(config: ModelConfig) -> list[str]:
    """Return what an execution of the model takes of Triton's rate limiter."""
    return [r.name for group in config.instance_group for r in group.rate_limiter.resources]


def test_an_ensemble_is_served_with_its_steps_and_the_plans_batch(repository: Path) -> None:
    write_ensemble(repository)
    write(repository, f'backend: "b" max_batch_size: 2 {TENSORS}', "other")
    tree = tree_of(repository, partition("E", model="e", batch=4))
    whole, one, other = (_config(tree, name) for name in ("E", "m", "other"))
    assert (whole.name, len(whole.instance_group), whole.HasField("dynamic_batching")) == ("E", 0, False)
    assert one.dynamic_batching.preferred_batch_size == [4]
    assert other.dynamic_batching.preferred_batch_size == [2]
    assert one.instance_group[0].kind == other.instance_group[0].kind
    assert tree.entries["m/1"] == Link(str(repository / "m" / "1"))


def test_the_steps_of_an_ensemble_take_turns_where_it_is_served_and_measured(repository: Path) -> None:
    write_ensemble(repository)
    served, plain = partition("E", model="e", batch=4), partition("W1")
    tree = tree_of(repository, served)
    measured = profiling_tree(read_source(repository, "e"), endpoints={"e.b4": 4}, gpu_type="cpu")
    for rendered in (tree, measured):
        assert [resources(_config(rendered, step)) for step in ("m", "other")] == [[TURN], [TURN]]
    assert takes_turns(served, partition_sources(served, repository))
    assert not takes_turns(plain, partition_sources(plain, repository))


def test_what_a_calling_model_executes_takes_no_turn(repository: Path) -> None:
    """It waits for them: with a turn of its own it would wait for ever."""
    write(repository, 'backend: "b" parameters { key: "composing_models" value { string_value: "other" } }')
    calling = partition("W1")
    tree = tree_of(repository, calling)
    assert [resources(_config(tree, name)) for name in ("W1", "other")] == [[], []]
    assert not takes_turns(calling, partition_sources(calling, repository))


def test_an_endpoint_named_as_a_step_is_refused(repository: Path) -> None:
    (repository / "e" / "1").mkdir(parents=True)
    (repository / "e" / "config.pbtxt").write_text(
        f'platform: "ensemble" max_batch_size: 8 {TENSORS} '
        'ensemble_scheduling { step [ { model_name: "m" model_version: -1 } ] }'
    )
    with pytest.raises(InputError, match="model 'e' executes 'm' in partition 'P1'"):
        tree_of(repository, partition("m", model="e"))


@pytest.mark.parametrize(
    ("endpoint", "step", "allowed"), [("A", "m", True), ("Z", "m", True), ("Z", "other", False)]
)
def test_a_step_may_be_called_by_clients_too(
    repository: Path, endpoint: str, step: str, allowed: bool
) -> None:
    """Pinned copies of a step differ in their folders alone."""
    write_ensemble(repository)
    both = partition(endpoint, model="e", batch=4)
    called = partition("m", model=step, batch=4)
    both = replace(both, models=both.models + called.models, workloads=both.workloads + called.workloads)
    pinned = {
        name: pinned_at(source, Pin(f"/pinned/{name}", (), {}))
        for name, source in partition_sources(both, repository).items()
    }
    if not allowed:
        with pytest.raises(InputError, match="executes 'm'"):
            partition_tree(both, gpu_type="cpu", sources=pinned)
        return
    tree = partition_tree(both, gpu_type="cpu", sources=pinned)
    assert tree.entries["m/1"] == Link("/pinned/m/m/1")


CODE = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config): ...\n"


@pytest.mark.parametrize(
    ("backend", "code", "completed"),
    [
        ('backend: "python"', "class TritonPythonModel: ...", False),
        ('backend: "python"', CODE, True),
        ('platform: "onnxruntime_onnx"', "", True),
        ('platform: "ensemble"', "", False),
        ("", "", True),
    ],
)
def test_what_loading_changes_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, code: str, completed: bool
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    models = tmp_path / "models"
    (models / "m" / "1").mkdir(parents=True)
    (models / "m" / "base.py").write_text(code)
    (models / "m" / "config.pbtxt").write_text(backend + TENSORS)
    assert to_complete(models, "m") is completed
    write_completed(models / "m", 'backend: "b" max_batch_size: 6' + TENSORS)
    assert not to_complete(models, "m")
    assert read_source(models, "m").config.max_batch_size == 6


def test_a_comment_may_have_another_encoding(repository: Path) -> None:
    config = repository / "m" / "config.pbtxt"
    config.write_bytes(b"# gr\xf6\xdfte\n" + config.read_bytes())
    assert read_source(repository, "m").config.max_batch_size == 8
    config.write_bytes(b'name: "gr\xf6\xdfte"\n' + config.read_bytes())
    with pytest.raises(InputError, match="not UTF-8"):
        read_source(repository, "m")


def test_a_profile_is_of_the_instances_that_are_served(repository: Path) -> None:
    config = repository / "m" / "config.pbtxt"
    config.write_text(
        config.read_text() + "sequence_batching { direct { } } instance_group { count: 3 kind: KIND_CPU }"
    )
    source = read_source(repository, "m")
    [group] = _config(profiling_tree(source, endpoints={"m.b1": 1}, gpu_type="cpu"), "m.b1").instance_group
    assert (group.count, len(group.rate_limiter.resources)) == (3, 1)
    assert takes_turns(partition("a"), {"m": source})


LIBRARY = "/install/launchers/triton/plugin/batch_limit.x86_64.so"
LIVE = f'backend: "b"\nmax_batch_size: 8\n{TENSORS}'


def with_library(repository: Path, batch: int, delay_us: int = 0) -> tuple[Tree, object]:
    served = partition("W1", batch=batch)
    models = tuple(replace(model, max_queue_delay_us=delay_us) for model in served.models)
    served = replace(served, models=models)
    sources = partition_sources(served, repository)
    tree = partition_tree(served, gpu_type="cpu", sources=sources, library=LIBRARY)
    return tree, live_batches(served, sources)[0]


def test_with_the_batch_library_a_batch_is_no_part_of_the_content(repository: Path) -> None:
    tree, batches = with_library(repository, 4)
    assert batches == (("W1", 4),)
    assert tree.entries["W1/batchstrategy.so"] == Link(LIBRARY)
    batching = _config(tree, "W1").dynamic_batching
    assert list(batching.preferred_batch_size) == [8], "several would close batches early"
    other, batches = with_library(repository, 2)
    assert batches == (("W1", 2),)
    assert other.content_hash == tree.content_hash


@pytest.mark.parametrize(
    "reason",
    ["queue delay", "sequences", "no batching", "batch 1", "own parameter", "own file", "own version"],
)
def test_models_whose_batches_the_library_cannot_count_are_served_as_without_it(
    repository: Path, reason: str
) -> None:
    config = {
        "sequences": LIVE + "sequence_batching { }",
        "no batching": LIVE.replace("max_batch_size: 8", "max_batch_size: 0"),
        "batch 1": LIVE.replace("max_batch_size: 8", "max_batch_size: 1"),
        "own parameter": LIVE
        + 'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "/x.so" } }',
    }.get(reason, LIVE)
    write(repository, config)
    own = {"own file": "m", "own version": "m/2"}.get(reason)
    if own is not None:
        (repository / own / "batchstrategy.so").touch()
    delay_us = 100 if reason == "queue delay" else 0
    tree, batches = with_library(repository, 4, delay_us)
    assert batches == ()
    served = replace(
        partition("W1"), models=(replace(partition("W1").models[0], max_queue_delay_us=delay_us),)
    )
    assert tree == tree_of(repository, served)


def test_a_shared_shadow_has_the_models_of_all_its_partitions_which_must_not_differ(repository: Path) -> None:
    write_ensemble(repository)
    write(repository, f'backend: "b" max_batch_size: 2 {TENSORS}', "other")
    first, second, other = (
        tree_of(repository, one)
        for one in (partition("E", model="e"), partition("W"), partition("F", model="e", batch=2))
    )
    both = together([first, second], "cpu-0")
    assert both.entries == {**first.entries, **second.entries}
    with pytest.raises(InputError, match="cpu-0 serve 'm' differently, so no shadow can be shared"):
        together([first, other], "cpu-0")
