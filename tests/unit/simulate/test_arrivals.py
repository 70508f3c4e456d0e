import numpy as np
import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.workload import Arrivals
from controlplane.simulate.arrivals import ArrivalStream, Demand, Gaps, Trace, read_trace


def arrivals(demand, seconds, seed=1, windows=1):
    stream = ArrivalStream(demand, np.random.default_rng(seed))
    return np.concatenate([stream.until(1000 * seconds * (i + 1) / windows) for i in range(windows)])


@pytest.mark.parametrize(
    ("demand", "cv"),
    [
        (Demand(500.0), 1.0),
        (Demand(500.0, Gaps.CONSTANT), 0.0),
        (Demand(500.0, Gaps.GAMMA, cv=2.5), 2.5),
    ],
)
def test_rate_and_burstiness_are_what_was_asked_for(demand, cv):
    times = arrivals(demand, 200)
    gaps = np.diff(times)
    assert times.size == pytest.approx(100_000, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03, abs=1e-6)
    assert times[0] >= 0
    assert times[-1] < 200_000


@pytest.mark.parametrize("demand", [Demand(300.0), Demand(steps=((0, 100), (3, 400)))])
def test_windows_do_not_change_what_arrives(demand):
    assert np.array_equal(arrivals(demand, 10), arrivals(demand, 10, windows=37))


def test_steps_hold_until_the_next():
    times = arrivals(Demand(steps=((0, 100), (50, 400), (80, 0))), 100) / 1000
    assert np.sum(times < 50) == pytest.approx(5000, rel=0.05)
    assert np.sum((times >= 50) & (times < 80)) == pytest.approx(12_000, rel=0.05)
    assert np.sum(times >= 80) == 0


def test_a_plans_arrivals_have_their_demand():
    assert Demand.of(Arrivals.CONSTANT, 12.0) == Demand(12.0, Gaps.CONSTANT)


def test_no_rate_no_arrivals():
    assert arrivals(Demand(0.0), 10).size == 0


def test_constant_streams_do_not_run_in_lockstep():
    assert (
        arrivals(Demand(10.0, Gaps.CONSTANT), 1, seed=1)[0] != arrivals(Demand(10.0, Gaps.CONSTANT), 1, 2)[0]
    )


def test_a_trace_of_times_is_replayed():
    trace = read_trace("time_s\n0.5\n0.5\n2.25\n", "calls.csv")
    assert trace == Trace((0.5, 0.5, 2.25))
    assert arrivals(trace, 2).tolist() == [500.0, 500.0]


def test_a_trace_of_counts_becomes_rates():
    demand = read_trace("start_s,count\n0,1000\n10,0\n20,3000\n30,0\n")
    times = arrivals(demand, 40) / 1000
    assert np.sum(times < 10) == pytest.approx(1000, rel=0.1)
    assert np.sum((times >= 10) & (times < 20)) == 0
    assert np.sum((times >= 20) & (times < 30)) == pytest.approx(3000, rel=0.06)
    assert np.sum(times >= 30) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "time_s"),
        ("when\n1\n", "time_s"),
        ("time_s\n1\nsoon\n", "trace.csv:3: time_s: 'soon' is not a number"),
        ("time_s\n2\n1\n", "ascending"),
        ("time_s\n-1\n", "trace.csv:2"),
        ("start_s,count\n0,5\n0,0\n", "trace.csv:3: start_s"),
        ("start_s,count\n0,5\n3,5\n", "last line"),
    ],
)
def test_a_wrong_trace_is_named(text, words):
    with pytest.raises(InputError, match=r"trace\.csv") as problem:
        read_trace(text, "trace.csv")
    assert words in str(problem.value)


@pytest.mark.parametrize(
    "wrong",
    [{"rate_rps": -1.0}, {"cv": 0.0}, {"steps": ((5, 1), (2, 1))}, {"rate_rps": float("nan")}],
)
def test_a_wrong_demand_is_named(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Demand(**wrong)


def test_a_bursty_demand_has_the_dispersion_that_was_asked_for():
    times = arrivals(Demand.of(Arrivals.POISSON, 200.0, dispersion=4.0), 2000) / 1000
    counts = np.bincount(times.astype(int), minlength=2000)[:2000]
    assert counts.var() / counts.mean() == pytest.approx(4.0, rel=0.15)
