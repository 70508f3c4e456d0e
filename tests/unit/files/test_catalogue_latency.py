import csv

import numpy as np
import pytest

from controlplane.domain.device import ShareKind
from controlplane.files import catalogue
from controlplane.latency import registry
from controlplane.latency.protocol import Slots

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["rtx2060", "rtx2060s"])
def test_the_inss_models_are_there_with_what_ran_beside_them(name: str) -> None:
    profiles = catalogue.profiles(name)
    assert len(profiles) == 8
    vgg16 = profiles["vgg16"].colocation[0]
    assert [n.model for n in vgg16.neighbours] == ["alexnet", "resnet50"]
    assert profiles["resnet50"].memory_mb == 1900
    assert set(profiles["vgg16"].fits) == {"igniter", "inss"}


def test_what_is_assumed_says_so() -> None:
    root = catalogue._ROOT
    for name in ("rtx2060", "rtx2060s"):
        rows = list(csv.DictReader((root / name / "solo.csv").read_text().splitlines()))
        assumed = {row["model"] for row in rows if row["assumed"]}
        assert {"resnet18", "vgg19", "mobilenet_v3"} <= assumed
        assert all(row["source"] for row in rows)
    moved = list(csv.DictReader((root / "rtx2060" / "solo.csv").read_text().splitlines()))
    assert all("34 / 30" in row["assumed"] for row in moved)


def test_a100_shares_are_the_mig_sizes() -> None:
    device = catalogue.device("a100")
    assert device is not None
    assert device.share_kind is ShareKind.MIG_SLICE
    sizes = {round(p.percent * 7 / 100, 3) for p in catalogue.profiles("a100")["resnet50"].points}
    assert sizes == {1, 2, 3, 4, 7}


@pytest.mark.parametrize("device_name", catalogue.devices())
@pytest.mark.parametrize("model_name", list(registry.FITS))
def test_every_latency_model_speaks_for_every_device(device_name: str, model_name: str) -> None:
    device, profiles = catalogue.device(device_name), catalogue.profiles(device_name)
    assert device is not None
    model = registry.build(model_name, device, profiles)
    slots = Slots.of([[0, 1, 2]], 4, 30)
    answer = model.estimate(slots)
    alone = model.estimate(Slots.alone([0, 1, 2], 4, 30))
    assert np.all(np.isfinite(answer.execution_upper_ms))
    assert np.all(answer.execution_ms[0] >= alone.execution_ms[:, 0] * (1 - 1e-9))
