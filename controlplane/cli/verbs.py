"""The verbs of `ctl`: what `ctl --help` shows of each, and what an interruption of it leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Verb(NamedTuple):
    """A verb. Its module has a function or an app of the verb's name; using the verb imports it.

    Where the name is one of Python's, the function's ends with an underscore. The help shows `summary`
    and `example`. `left` says what an interruption leaves and how to go on.
    """

    module: str
    summary: str
    example: str
    left: str = "nothing was changed"


_WHOLE_FILES = "each output file is the old one or the new one, never a part of it"

GROUPS: Mapping[str, Mapping[str, Verb]] = {
    "Set up": {
        "doctor": Verb(
            "jobs.set_up", "Check this host for GPUs, Triton, HAProxy, Docker and quotas.", "ctl doctor"
        ),
        "init": Verb(
            "jobs.set_up",
            "Write a spec's skeleton from a model repository.",
            "ctl init model_repository -o spec.yaml",
            "nothing was written; what Triton completed so far is kept, and the same command continues",
        ),
        "demo": Verb(
            "jobs.set_up",
            "Run every step on this host with real Tritons.",
            "ctl demo --plan-file plan.json",
            "the demo destroys its fleet as it ends; `ctl destroy --fleet demo` removes what may be left",
        ),
    },
    "Measure": {
        "profile": Verb(
            "jobs.profile",
            "Measure models and write a profile of each.",
            "ctl profile resnet_tiny --device cpu",
            "what is measured is kept; the same command continues from there",
        ),
        "import": Verb(
            "jobs.profile",
            "Make a profile from files of other tools.",
            "ctl import resnet50 8:b8.csv --from perf-analyzer --device v100",
            _WHOLE_FILES,
        ),
        "validate": Verb(
            "jobs.judging",
            "Compare predicted latencies with measured ones.",
            "ctl validate --catalogue v100",
            f"{_WHOLE_FILES}; the same command begins again",
        ),
    },
    "Plan": {
        "plan": Verb(
            "jobs.plan",
            "Choose the GPU, share and batch of every workload.",
            "ctl plan examples/twelve.yaml -o plan.json",
            f"{_WHOLE_FILES}; the same command begins again, and --set budget_s=N ends the search earlier",
        ),
        "show": Verb(
            "jobs.show",
            "Show what a plan says: its table, a workload, its page.",
            "ctl show plan.json --explain search",
            _WHOLE_FILES,
        ),
        "compare": Verb(
            "jobs.judging",
            "Compare strategies on one spec: GPUs and late workloads.",
            "ctl compare examples/twelve.yaml --strategies joint,igniter --report compared.html",
            f"{_WHOLE_FILES}; the same command begins again, and fewer --seconds take less time",
        ),
        "simulate": Verb(
            "jobs.judging",
            "Simulate a plan under load.",
            "ctl simulate plan.json --seconds 60",
            "the plan is unchanged; the same command begins again, and fewer --seconds take less time",
        ),
        "render": Verb(
            "jobs.show",
            "Write the model repositories of a plan.",
            "ctl render plan.json --output triton_configs",
            "some repositories may be missing; the same command writes all of them",
        ),
        "train": Verb(
            "jobs.plan",
            "Train a policy for `ctl plan --strategy inss`.",
            "ctl train examples/twelve.yaml -o policy.npz",
            "the checkpoint beside --output is kept; the same command continues from there",
        ),
    },
    "Run": {
        "apply": Verb(
            "fleet.apply",
            "Make the running fleet match a plan.",
            "ctl apply plan.json --dry-run",
            "servers that answered clients still do, and some new ones may run beside them; the same command "
            "continues from what runs, `ctl status` shows it, `ctl destroy` ends the fleet",
        ),
        "diff": Verb(
            "fleet.apply", "Show what an apply would change; exit code 1 if anything.", "ctl diff plan.json"
        ),
        "list": Verb("fleet.looking", "List the fleets of this host.", "ctl list"),
        "status": Verb("fleet.looking", "Show a fleet's servers and their latencies.", "ctl status --watch"),
        "top": Verb(
            "fleet.looking",
            "Watch a fleet on the whole terminal.",
            "ctl top --fleet shop",
            "a redirect that you asked for is done; nothing else was changed",
        ),
        "wait": Verb(
            "fleet.looking", "Wait until a fleet serves and keeps its SLOs.", "ctl wait --timeout 120"
        ),
        "events": Verb("fleet.looking", "Show the history of a fleet.", "ctl events --since 3600 --json"),
        "logs": Verb(
            "fleet.looking", "Show what the servers of a workload have logged.", "ctl logs search -f"
        ),
        "redirect": Verb(
            "fleet.changing",
            "Move a workload's traffic to its shadow, or back.",
            "ctl redirect search",
            "all routes are the old ones or all are the new ones; look with `ctl status` first: the same "
            "command moves them back where they have moved",
        ),
        "rollback": Verb(
            "fleet.changing",
            "Apply the previous plan again.",
            "ctl rollback --yes",
            "servers that answered clients still do; `ctl status` shows what runs, and `ctl apply` with the "
            "plan that you want continues from there",
        ),
        "destroy": Verb(
            "fleet.changing",
            "Stop a fleet.",
            "ctl destroy --fleet shop",
            "some servers may still run; the same command stops them",
        ),
    },
    "Look": {
        "dashboard": Verb("fleet.looking", "Serve a live page of a fleet.", "ctl dashboard --no-browser"),
        "report": Verb(
            "fleet.looking",
            "Write a page of a fleet and its record.",
            "ctl report --fleet shop -o shop.html",
            _WHOLE_FILES,
        ),
    },
    "Access": {
        "token": Verb(
            "fleet.access",
            "Grant and revoke clients' access to endpoints.",
            "ctl token create shop --endpoint resnet50",
            "`ctl token list` shows the clients; a token that was not printed is lost: revoke and create it "
            "again",
        ),
        "limit": Verb(
            "fleet.access",
            "Limit the requests of an endpoint.",
            "ctl limit set resnet50 --max-rate 500",
            "`ctl limit list` shows the limits that hold",
        ),
    },
    "Other": {
        "controller": Verb(
            "fleet.changing",
            "Run the controller of a fleet.",
            "ctl controller --once",
            "the servers go on without a controller; `ctl controller` continues",
        ),
        "schema": Verb(
            "jobs.set_up", "Print the JSON Schema of a verb's --json document.", "ctl schema plan"
        ),
    },
}

VERBS: Mapping[str, Verb] = {name: verb for group in GROUPS.values() for name, verb in group.items()}
