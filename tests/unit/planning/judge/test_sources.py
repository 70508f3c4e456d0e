"""Where a plan's execution times come from."""

from dataclasses import replace

import build
import planning

from controlplane.domain.plan import Partition, PlannedGpu, Source
from controlplane.domain.profile import ColocationPoint, Factor, Neighbour
from controlplane.latency.calibration import Calibrated
from controlplane.planning.judge.sources import measured_on, sentence, source_of
from controlplane.planning.protocol import Device


def partition(name: str, model: str, percent: float, batch: int) -> Partition:
    return build.partition(name, percent, model=model, batch=batch, slo_ms=100.0)


def told(device: Device, own: Partition, *others: Partition) -> tuple[Source, str]:
    gpu = PlannedGpu("v100-0", "v100", (own, *others))
    asked = gpu, own, own.models[0], device
    return source_of(*asked, measured_on(device)), sentence(*asked)


def test_a_measured_point_alone_and_beside_the_neighbours_that_it_was_measured_with() -> None:
    device = planning.v100("ours")
    point = device.profiles["ssd"].points[0]
    own = partition("S", "ssd", point.percent, point.batch)
    assert told(device, own)[0] is Source.MEASURED
    beside = partition("A", "alexnet", 20.0, 4)
    assert told(device, own, beside)[0] is Source.PREDICTED
    together = ColocationPoint(point.percent, point.batch, (Neighbour("alexnet", 20.0, 4),), 9.0)
    measured = replace(device.profiles["ssd"], colocation=(together,))
    device = replace(device, profiles={**device.profiles, "ssd": measured})
    source, text = told(device, own, beside)
    assert (source, text) == (
        Source.MEASURED,
        "execution time: measured at this share and batch, beside these neighbours",
    )
    assert told(device, own, partition("A", "alexnet", 20.0, 5))[0] is Source.PREDICTED


def test_a_factor_of_the_model_beside_the_most_similar_neighbours_is_what_was_learned() -> None:
    device = planning.v100("ours")
    factors = (
        Factor("ssd", "v100", (), 1.1, 100, 0.0),
        Factor("ssd", "v100", ("alexnet", "vgg19"), 1.3, 200, 0.0),
    )
    device = replace(device, latency=Calibrated.of(device.latency, "v100", factors))
    own, beside = partition("S", "ssd", 30.0, 2), partition("A", "alexnet", 20.0, 4)
    assert "from 100 batches of running fleets beside no neighbour: 1.10 times" in told(device, own)[1]
    more = partition("R", "vgg19", 20.0, 2)
    assert (
        "from 200 batches of running fleets beside alexnet, vgg19: 1.30 times"
        in (told(device, own, beside, more)[1])
    )
    assert told(device, beside, own)[0] is Source.PREDICTED, "another model"
