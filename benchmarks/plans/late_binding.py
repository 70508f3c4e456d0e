"""Late binding: Paella's order at the gateway with a real Triton, and what it saves of a plan.

python -m benchmarks.plans.late_binding order       2 and 30 ms on one Triton, in three orders
python -m benchmarks.plans.late_binding overload    1.5 times the planned rate of one of four models
python -m benchmarks.plans.late_binding cost        rates and p50 with gates and without, in pairs
python -m benchmarks.plans.late_binding clients     a client of 30 connections beside one that seldom calls
python -m benchmarks.plans.late_binding stages      Fig 3: what Triton adds to a model's execution
python -m benchmarks.plans.late_binding plans       GPUs for 50 models with late binding and without

`order` takes --load, --rounds, --seconds; runs are interleaved, HTTP and gRPC mixed.
Exits 1 where an aim is missed.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from shutil import copytree

import numpy as np
import planning
import tritonclient.grpc as grpc_client
from bare_triton import ROOT, bare_triton
from gateway_rig import Load, Ports, a_gateway, tritons
from perf_client import closed_loop
from sleeping_triton import ahead_of_others
from tritonclient.utils import triton_to_np_dtype

from benchmarks.harness import Figures, show, table
from benchmarks.support.mixed_models import Answers, Front, Mixed, due, gateway, plan_of, sent, triton
from controlplane.control.order import order_of
from controlplane.domain.fleet import AccessConfig, Route
from controlplane.domain.plan import Plan, Rule
from controlplane.domain.serving import LONGEST_MS, Precedence
from controlplane.files.gateway.access import Client
from controlplane.gateway.security.registry import ClientRegistry
from controlplane.planning import registry
from controlplane.planning.protocol import PlanRequest
from controlplane.simulate.arrivals import Demand
from controlplane.simulate.engine import Settings, simulate
from controlplane.simulate.network import Conditions

# At the gateway.
SHORT_GAIN, LONG_LOSS, GOODPUT = 5.0, 2.0, 0.95
OVERLOAD_PLANNED = 0.68
"""Of the time that the models take: Triton and the gateway add some 1.5 ms a request."""
BY_CHANCE = 0.01
"""The part of those within their promise that may be refused."""
CALL_MS, FAIR = 20, 3.0
"""With a threshold a client that seldom calls is answered so many times sooner."""
SAMPLES = ("alexnet_tiny", "resnet_tiny", "transformer_tiny")
STAGES = ("queue", "compute_input", "compute_infer", "compute_output")
CALLS, PAPER_OVERHEAD = 400, 66
GATE_KEPT = 0.8
"""Of the throughput without a gate."""

# Plans: 50 models of the V100 catalogue's four kinds, few requests per second each, on GPUs cut into five.
PLANNED_MODELS, COPIES, PLANNED_SECONDS = 50, 17, 300.0


@dataclass(frozen=True)
class Way:
    """An option of the gateway that is measured."""

    name: str
    late_binding: bool
    overtake_ms: int


OFF = Way("Triton's order", False, 0)
FIRST_COME = Way("first come", True, 0)
SHORTEST = Way("shortest first", True, LONGEST_MS)
LIMITED = Way("late binding", True, 1_000)


@contextlib.contextmanager
def partition(models: Sequence[Mixed], batch: int) -> Iterator[Callable[[Way], Front]]:
    """A Triton with these models, and gateways in front of it as they are asked for."""
    plan = plan_of(models, batch)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        backend = stack.enter_context(triton(Path(folder, "triton"), plan, models))
        fronts: dict[Way, Front] = {}

        def front(way: Way) -> Front:
            if way not in fronts:
                home = Path(folder, f"gateway{len(fronts)}")
                made = gateway(
                    home, plan, backend, late_binding=way.late_binding, overtake_ms=way.overtake_ms
                )
                fronts[way] = stack.enter_context(made)
            return fronts[way]

        yield front


def pair_of(load: float) -> tuple[Mixed, ...]:
    """The short and the long model; the long one has twice the load of the short one."""
    parts = (("short", 2.0, load / 3), ("long", 30.0, 2 * load / 3))
    return tuple(Mixed(name, ms, 0.0, part / ms * 1e3) for name, ms, part in parts)


def interleaved(ways: Sequence[Way], options: argparse.Namespace) -> dict[Way, list[dict[str, Answers]]]:
    """Runs of each way in turn, on the same arrivals."""
    models = pair_of(options.load)
    runs: dict[Way, list[dict[str, Answers]]] = {way: [] for way in ways}
    with partition(models, 1) as front:
        for seed in range(options.rounds):
            requests = due({m.name: m.rate_rps for m in models}, options.seconds, seed)
            for way in ways:
                at = front(way)
                runs[way].append(sent(at.http, at.grpc, requests))
    return runs


def middle(runs: Sequence[dict[str, Answers]], model: str, of: float) -> float:
    return float(np.median([run[model].quantile(of) for run in runs]))


def failures(runs: Sequence[dict[str, Answers]]) -> list[str]:
    return [failure for run in runs for answers in run.values() for failure in answers.failures]


def show_runs(title: str, runs: dict[Way, list[dict[str, Answers]]]) -> None:
    columns = (">", ">model", ">p50 ms", ">P99 ms", ">HTTP", ">gRPC", ">P99 of each run", ">failed")
    made = table(title, *columns)
    for way, those in runs.items():
        for model in sorted(those[0], reverse=True):
            protocols = [
                float(np.median([np.quantile(run[model].latencies[p], 0.99) for run in those]))
                for p in ("http", "grpc")
            ]
            made.add_row(
                *(way.name, model, f"{middle(those, model, 0.5):.1f}", f"{middle(those, model, 0.99):.1f}"),
                *(f"{ms:.1f}" for ms in protocols),
                " ".join(f"{run[model].quantile(0.99):.0f}" for run in those),
                str(sum(len(run[model].failures) for run in those)),
            )
    show(made, width=140)


def order(options: argparse.Namespace, figures: Figures) -> None:
    runs = interleaved((OFF, FIRST_COME, SHORTEST), options)
    show_runs(f"2 and 30 ms, load {options.load:g}, {options.seconds:g} s a run", runs)
    first, shortest = runs[FIRST_COME], runs[SHORTEST]
    short, long = (middle(first, m, 0.99) / middle(shortest, m, 0.99) for m in ("short", "long"))
    figures.add("short P99, first come over shortest first", short, at_least=SHORT_GAIN)
    figures.add("long P99, shortest first over first come", 1 / long, at_most=LONG_LOSS)
    figures.add("failed", len(failures(first) + failures(shortest)), at_most=0)


def overload(options: argparse.Namespace, figures: Figures) -> None:
    """The fourth model gets 1.5 times its rate. Capacity: the work that an overloaded Triton does alone."""
    models = tuple(
        Mixed(name, ms, 0.0, OVERLOAD_PLANNED * part / ms * 1e3, slo_ms=150.0)
        for name, ms, part in (("a", 2.0, 0.05), ("b", 4.0, 0.1), ("c", 8.0, 0.15), ("d", 10.0, 0.7))
    )
    rates = {m.name: m.rate_rps for m in models}
    above = {**rates, "d": 1.5 * rates["d"]}
    made = table(
        f"planned load {OVERLOAD_PLANNED:g}, then 1.5 times the rate of d",
        *(">", ">model", ">requests", ">refused", ">P99 ms", ">ratio"),
    )
    worked, failed = {}, 0
    with partition(models, 1) as front:
        for way in (OFF, LIMITED):
            at = front(way)
            usual = sent(at.http, at.grpc, due(rates, options.seconds, 1))
            busy = sent(at.http, at.grpc, due(above, options.seconds, 2))
            for m in models:
                before, now = usual[m.name].quantile(0.99), busy[m.name].quantile(0.99)
                answered, refused = len(busy[m.name].all_ms), busy[m.name].refused
                made.add_row(
                    *(way.name, m.name, str(answered + refused), str(refused)),
                    *(f"{before:.0f} -> {now:.0f}", f"{now / before:.2f}"),
                )
                if way is LIMITED and m.name != "d":
                    figures.add(f"P99 of {m.name} beside the overload", now, "ms", at_most=m.slo_ms)
                    figures.add(f"refused of {m.name}", refused / answered, at_most=BY_CHANCE)
            work_ms = sum(len(busy[m.name].all_ms) * m.fixed_ms for m in models)
            worked[way] = work_ms / busy["d"].seconds / 1e3
            failed += len(failures([usual, busy]))
    show(made)
    figures.add("work done in order", worked[LIMITED], "of the time", at_least=GOODPUT * worked[OFF])
    figures.add("failed", failed, at_most=0)


def cost(options: argparse.Namespace, figures: Figures) -> None:
    """A closed loop of perf_analyzer on a model without work, through slots alone and through a gate."""
    models = (Mixed("short", 0.0, 0.0, 1000.0), Mixed("long", 30.0, 0.0, 1.0))
    gate = Way("gate", True, 0)
    with partition(models, 8) as front:
        for protocol, connections in product(("grpc", "http"), (1, 16)):
            pairs = np.array(
                [
                    [
                        closed_loop(
                            *(protocol, getattr(front(way), protocol), connections, options.window_ms),
                            endpoint="short",
                        )
                        for way in (OFF, gate)
                    ]
                    for _ in range(options.rounds)
                ]
            )
            for index, unit in enumerate(("req/s", "ms p50")):
                name = f"{protocol}, {connections} connections"
                for way, values in zip(("slots", "gate"), pairs[:, :, index].T, strict=True):
                    figures.add(f"{name}, {way}", float(np.median(values)), unit)
                ratios = pairs[:, 1, index] / pairs[:, 0, index]
                least = GATE_KEPT if unit == "req/s" else None
                figures.add(f"{name}, gate over slots, {unit}", float(np.median(ratios)), at_least=least)


def clients(options: argparse.Namespace, figures: Figures) -> None:
    """P50 of a client that calls now and then, beside one of 30 connections, by threshold."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        here = Path(folder)
        one = stack.enter_context(tritons(here, one={"slow": "slow", "echo": "echo"}))["one"]
        protection = AccessConfig(tokens=True)
        front, ports = stack.enter_context(a_gateway(here, late_binding=True, protection=protection))
        registry = ClientRegistry(here / "gateway")
        tokens = {name: registry.create(Client(name, ("*",))) or "" for name in ("greedy", "other")}
        front.commit({endpoint: Route((one.backend,)) for endpoint in ("slow", "echo")})
        first_come_ms = 0.0
        for threshold_ms in (0, 200):
            place = Precedence("P1", 0, 2, 10**6, 10**6, CALL_MS, threshold_ms)
            front.arrange(dict.fromkeys(("slow", "echo"), place))
            greedy, other = asyncio.run(_beside(ports, tokens, options.seconds))
            first_come_ms = first_come_ms or other
            most = first_come_ms / FAIR if threshold_ms else None
            name = f"threshold {threshold_ms} ms: P50 of the other client"
            figures.add(name, other, "ms", at_most=most)
            figures.add(f"threshold {threshold_ms} ms: P50 of the greedy one", greedy, "ms")


async def _beside(ports: Ports, tokens: Mapping[str, str], seconds: float) -> tuple[float, float]:
    stop = asyncio.Event()
    greedy = [Load(ports, "slow", CALL_MS / 1e3, tokens["greedy"]) for _ in range(30)]
    other = Load(ports, "slow", CALL_MS / 1e3, tokens["other"])
    running = [asyncio.create_task(one.one_by_one(stop, 0.0)) for one in greedy]
    running.append(asyncio.create_task(other.one_by_one(stop, 0.3)))
    await asyncio.sleep(seconds)
    stop.set()
    await asyncio.gather(*running)
    seen = [
        [1e3 * (o.ended - o.started) for load in loads for o in load.outcomes] for loads in (greedy, [other])
    ]
    return float(np.median(seen[0])), float(np.median(seen[1]))


def stages(options: argparse.Namespace, figures: Figures) -> None:
    """Paella's Fig 3, a lone gRPC client: what is not execution over the execution, and its stages."""
    made = table("us a request", ">model", ">batch", ">outside", *(f">{stage}" for stage in STAGES))
    with tempfile.TemporaryDirectory() as folder, ahead_of_others():
        for name in SAMPLES:
            copytree(ROOT / "model_repository" / name, Path(folder, "models", name))
        with (
            bare_triton(Path(folder, "models"), Path(folder, "log")) as running,
            grpc_client.InferenceServerClient(running.grpc) as client,
        ):
            for name, batch in product(SAMPLES, (1, 8)):
                outside, *each = _stages(client, name, batch)
                overhead = (outside + sum(each)) / each[STAGES.index("compute_infer")] - 1.0
                made.add_row(name, str(batch), *(f"{us:.0f}" for us in (outside, *each)))
                what = f"{name}, batch {batch}: overhead"
                figures.add(what, 100.0 * overhead, "%", at_most=PAPER_OVERHEAD, reference=PAPER_OVERHEAD)
    show(made)


def _stages(client: grpc_client.InferenceServerClient, name: str, batch: int) -> list[float]:
    """Mean us of a request outside the server, and in each of its stages."""
    inputs = []
    for spec in client.get_model_metadata(name).inputs:
        shape = [batch, *(max(int(size), 1) for size in spec.shape[1:])]
        inputs.append(grpc_client.InferInput(spec.name, shape, spec.datatype))
        inputs[-1].set_data_from_numpy(np.zeros(shape, triton_to_np_dtype(spec.datatype)))
    for _ in range(CALLS // 10):
        client.infer(name, inputs)

    def counted(stage: str) -> int:
        return int(getattr(client.get_inference_statistics(name).model_stats[0].inference_stats, stage).ns)

    before = [counted(stage) for stage in ("success", *STAGES)]
    began = time.perf_counter()
    for _ in range(CALLS):
        client.infer(name, inputs)
    whole_us = 1e6 * (time.perf_counter() - began) / CALLS
    after = [counted(stage) for stage in ("success", *STAGES)]
    inside, *each = [(b - a) / 1e3 / CALLS for a, b in zip(before, after, strict=True)]
    return [whole_us - inside, *each]


def plans(options: argparse.Namespace, figures: Figures) -> None:
    """Random lists of 50 models, planned twice; each plan is simulated with what its own order says."""
    columns = (">list", ">", ">GPUs", ">partitions", ">in turns", ">in order", ">late workloads", ">CPU s")
    made = table(f"{PLANNED_MODELS} workloads of as many models", *columns)
    device = planning.cores(COPIES)
    gpus, wrong = {True: 0, False: 0}, 0
    for seed in range(1, options.rounds + 1):
        request = PlanRequest(
            planning.mixed(PLANNED_MODELS, COPIES, seed), {"v100": device}, Rule.P99, planning.StoppedClock()
        )
        for late_binding in (False, True):
            began = time.process_time()
            plan = registry.strategy("joint", late_binding=late_binding).plan(request)
            cpu_s = time.process_time() - began
            late = late_workloads(plan)
            wrong += late + len(plan.infeasible) + (not plan.verified)
            gpus[late_binding] += len(plan.gpus)
            partitions = [partition for _, partition in plan.partitions()]
            made.add_row(
                str(seed),
                "late binding" if late_binding else "any order",
                str(len(plan.gpus)),
                str(len(partitions)),
                str(sum(p.turns for p in partitions)),
                str(sum(p.ordered for p in partitions)),
                str(late),
                f"{cpu_s:.1f}",
            )
    show(made)
    figures.add("GPUs fewer with late binding", gpus[False] - gpus[True], at_least=1)
    figures.add("late, infeasible or unverified", wrong, at_most=0)


def late_workloads(plan: Plan) -> int:
    """Workloads with more than 1 % of their requests late, simulated."""
    demands = {w.name: Demand.of(w.arrivals, w.rate_rps) for _, _, w in plan.placements()}
    asked = Settings(seconds=PLANNED_SECONDS, demands=demands)
    latency = planning.cores(COPIES).latency
    seen = simulate(plan, {"v100": latency}, asked, Conditions(order=order_of(plan, None)))
    return sum(not w.holds for w in seen.workloads)


TABLES = {
    "order": order,
    "overload": overload,
    "cost": cost,
    "clients": clients,
    "stages": stages,
    "plans": plans,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=list(TABLES), nargs="?", default="order")
    parser.add_argument("--load", type=float, default=0.85)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--window-ms", type=int, default=700)
    options = parser.parse_args()
    figures = Figures()
    TABLES[options.what](options, figures)
    return figures.end()


if __name__ == "__main__":
    sys.exit(main())
