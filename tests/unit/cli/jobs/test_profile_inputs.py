"""`ctl import`: profiles from files of other tools; what `ctl profile` is given about inputs."""

from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from told import Ctl

from controlplane.cli.jobs.profile import model_inputs
from controlplane.cli.schemas import schema
from controlplane.domain.device import MPS_GRID, Device, ShareKind
from controlplane.domain.errors import InputError
from controlplane.domain.profile import Counters, Profile
from controlplane.files import catalogue
from controlplane.files.measurements.profiles import read_profile, write_device, write_profile
from controlplane.profiler.requests import Inputs

DATA = Path(__file__).parents[3] / "data" / "elsewhere"
SPEC = """schema_version: 1
gpus: [{type: t4}]
workloads: [{name: w, model: resnet, slo_ms: 400, rate_rps: 2}]
"""


def test_a_plan_from_perf_analyzers_points_takes_the_whole_gpu_and_asks_for_more_shares(
    directory: Path, ctl: Ctl
) -> None:
    told = ctl(f"import resnet 4:{DATA / 'perf_analyzer.csv'} --device t4 --from perf-analyzer")
    assert "profiles/t4/resnet.json: 1 point with what perf-analyzer measured" in told.out
    for way_out in ("plans give it no smaller share", "--at 50", "write memory_mb in the spec"):
        assert way_out in told.err.replace("\n", " ")

    (directory / "spec.yaml").write_text(SPEC)
    told = ctl("plan spec.yaml --json")
    plan = told.document
    assert [p["percent"] for g in plan["gpus"] for p in g["partitions"]] == [100.0]
    assert plan["verified"]
    assert "resnet was measured at 100 % of t4 only" in told.err


def test_files_of_several_tools_and_shares_make_one_profile(directory: Path, ctl: Ctl) -> None:
    analyzer = f"{DATA / 'metrics-model-inference-server.csv'} --from model-analyzer"
    document = ctl("import resnet50 --device t4 --json", analyzer).document
    jsonschema.Draft202012Validator(schema("import")).validate(document)
    assert document["profiles"][0]["points"] == 2
    half = f"1:{DATA / 'perf_analyzer_documented.csv'} --from perf-analyzer --at 50"
    told = ctl("import resnet50 --device t4", half)
    made = read_profile(directory / "profiles" / "t4" / "resnet50.json")
    assert [(p.percent, p.batch) for p in made.points] == [(50, 1), (100, 1), (100, 8)]
    assert "no smaller share" not in told.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("m f.csv --from perf-analyzer", "must be BATCH:FILE; 8:FILE was measured with"),
        ("m 1:none.json --from aiperf", "none.json"),
        ("m 8:f.sqlite --from nsys", "has no profile on t4"),
        ("m 1:f.json --from perf", "'perf' is not one of"),
    ],
)
def test_wrong_command_lines_are_refused(arguments: str, said: str, directory: Path, ctl: Ctl) -> None:
    assert said in ctl("import", arguments, "--device t4", code=2).err
    assert not (directory / "profiles").exists()


def test_counters_join_a_profile_on_the_device_that_the_users_file_describes(
    directory: Path, monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    profiles = directory / "profiles"
    write_profile(profiles, replace(catalogue.profiles("v100")["alexnet"], device="rtx3090"))
    write_device(profiles, Device("rtx3090", ShareKind.MPS_PERCENT, MPS_GRID, memory_mb=24_000.0))
    (directory / "ncu.csv").write_text(
        '"ID","Kernel Name","gpu__time_duration.sum","lts__t_sectors.avg.pct_of_peak_sustained_elapsed"\n'
        '"","","us","%"\n"0","gemm","3,000","40.00"\n'
    )
    used: list[Device | None] = []

    def with_fits(profile: Profile, counters: Counters, device: Device | None = None) -> Profile:
        used.append(device)
        assert counters.cache_percent == {8: 40.0}
        return profile

    monkeypatch.setattr("controlplane.runtime.jobs.elsewhere.with_fits", with_fits)
    told = ctl("import alexnet 8:ncu.csv --from ncu --device rtx3090")
    assert used[0] is not None
    assert used[0].memory_mb == 24_000.0
    assert "rtx3090/alexnet.json" in told.out


def test_shapes_and_ranges_are_for_the_model_they_name_and_for_all_where_they_name_none() -> None:
    shapes, ranges = ["ocr:IMAGE:3,48,320", "TOKENS:8", "x:0:2"], ["ocr:IDS:0,9", "X:-1,1.5"]
    every = {"X": (-1.0, 1.5)}
    assert model_inputs(shapes, ["bert:in.json"], ["ocr", "bert"], ranges) == {
        "ocr": Inputs(
            {"IMAGE": (3, 48, 320), "TOKENS": (8,), "x:0": (2,)}, ranges={"IDS": (0.0, 9.0), **every}
        ),
        "bert": Inputs({"TOKENS": (8,), "x:0": (2,)}, Path("in.json"), every),
    }
    assert model_inputs([], [], ["ocr"]) == {}


@pytest.mark.parametrize(
    ("shapes", "files", "ranges", "message"),
    [
        (["IMAGE"], [], [], "--shape: 'IMAGE' is not MODEL:INPUT:DIM,DIM"),
        (["ocr:IMAGE:3,0"], [], [], "--shape: .*with dimensions above 0"),
        ([], ["in.json"], [], "--input-data: 'in.json' is not MODEL:FILE"),
        ([], ["ocr:a", "ocr:b"], [], "--input-data: 'ocr' has two files"),
        *(
            ([], [], [text], "--range: .*LOW,HIGH")
            for text in ("X", "ocr:X:1", "ocr:X:2,1", "ocr:X:nan,1", "ocr:X:0,inf", "ocr:X:0,1,2")
        ),
    ],
)
def test_what_is_in_no_such_form_is_refused(
    shapes: list[str], files: list[str], ranges: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        model_inputs(shapes, files, ["ocr"], ranges)
