"""The lint of manifests finds each defect that strict schemas accept."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifests import problems

GOLDEN = Path(__file__).parents[1] / "golden" / "kubernetes" / "shared_claim.yaml"
Edit = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], None]


def edited(edit: Edit) -> list[str]:
    made = copy.deepcopy(list(yaml.safe_load_all(GOLDEN.read_text())))
    by_kind = {one["kind"]: one for one in made}
    edit(by_kind["Pod"], by_kind["PodDisruptionBudget"], by_kind["ResourceClaim"])
    return problems(made)


def fractional(pod: dict[str, Any], _: object, __: object) -> None:
    pod["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "0.5"}


def unequal(pod: dict[str, Any], _: object, __: object) -> None:
    extended = {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}}
    pod["spec"]["containers"][0]["resources"].update(extended)


def selector(_: object, budget: dict[str, Any], __: object) -> None:
    budget["spec"]["selector"]["matchLabels"]["trisect.dev/partition"] = "W2"


def claim(pod: dict[str, Any], _: object, __: object) -> None:
    pod["spec"]["containers"][0]["resources"]["claims"][0]["name"] = "gpus"


def absent_claim(pod: dict[str, Any], _: object, __: object) -> None:
    pod["spec"]["resourceClaims"][0]["resourceClaimName"] = "other"


def label(pod: dict[str, Any], _: object, __: object) -> None:
    pod["metadata"]["labels"]["trisect.dev/plan"] = "-x"


def mount(pod: dict[str, Any], _: object, __: object) -> None:
    pod["spec"]["containers"][0]["volumeMounts"][0]["name"] = "config"


def strategy(_: object, __: object, claim: dict[str, Any]) -> None:
    claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]["sharing"]["strategy"] = "mps"


def node_name(pod: dict[str, Any], _: object, __: object) -> None:
    pod["spec"]["nodeName"] = "node-1"


def unknown_field(pod: dict[str, Any], _: object, __: object) -> None:
    pod["spec"]["nodeSelectors"] = {}


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (fractional, "no whole number"),
        (unequal, "is not the limit"),
        (selector, "finds no pod"),
        (claim, "unknown claim"),
        (absent_claim, "no ResourceClaim other"),
        (label, "illegal value"),
        (mount, "unknown volume"),
        (strategy, "unknown strategy mps"),
        (node_name, "nodeSelector"),
        (unknown_field, "nodeSelectors"),
    ],
)
def test_a_defect_is_found(edit: Edit, problem: str) -> None:
    found = edited(edit)
    assert len(found) == 1
    assert problem in found[0]
