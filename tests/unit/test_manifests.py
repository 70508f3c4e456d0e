"""The lint of manifests finds each defect that strict schemas accept."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from manifests import problems

GOLDEN = Path(__file__).parents[1] / "golden" / "kubernetes" / "shared_claim.yaml"
RESOURCES = "spec.containers.0.resources"
SHARING = "spec.devices.config.0.opaque.parameters.sharing.strategy"


@pytest.mark.parametrize(
    ("kind", "place", "value", "problem"),
    [
        ("Pod", f"{RESOURCES}.limits", {"nvidia.com/gpu": "0.5"}, "no whole number"),
        (
            "Pod",
            RESOURCES,
            {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}, "claims": [{"name": "gpu"}]},
            "is not the limit",
        ),
        ("Pod", f"{RESOURCES}.claims.0.name", "gpus", "unknown claim"),
        ("Pod", "spec.resourceClaims.0.resourceClaimName", "other", "no ResourceClaim other"),
        ("Pod", "metadata.labels.trisect~dev/plan", "-x", "illegal value"),
        ("Pod", "spec.containers.0.volumeMounts.0.name", "config", "unknown volume"),
        ("Pod", "spec.nodeName", "node-1", "nodeSelector"),
        ("Pod", "spec.nodeSelectors", {}, "nodeSelectors"),
        ("PodDisruptionBudget", "spec.selector.matchLabels.trisect~dev/partition", "W2", "finds no pod"),
        ("ResourceClaim", SHARING, "mps", "unknown strategy mps"),
    ],
)
def test_a_defect_is_found(kind: str, place: str, value: object, problem: str) -> None:
    """`~` stands for a dot within a key of `place`."""
    made = list(yaml.safe_load_all(GOLDEN.read_text()))
    inner: Any = next(one for one in made if one["kind"] == kind)
    *outer, last = (int(step) if step.isdigit() else step.replace("~", ".") for step in place.split("."))
    for step in outer:
        inner = inner[step]
    inner[last] = value
    (found,) = problems(made)
    assert problem in found
