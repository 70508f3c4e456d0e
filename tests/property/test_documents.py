import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.files import catalogue
from controlplane.files.documents import versioned
from controlplane.files.writing import to_json

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | st.integers() | FLOATS | st.text()
KEYS = st.text() | st.integers() | st.booleans() | st.none()
CONTENT = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)


@given(CONTENT)
def test_json_text_is_what_the_standard_library_indents(content: object) -> None:
    assert to_json(content) == json.dumps(content, indent=2, allow_nan=False) + "\n"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_has_no_infinity(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"a": [value]})


def test_a_profile_is_written_with_all_its_fields_in_order() -> None:
    for profile in catalogue.profiles("v100").values():
        whole = {"schema_version": 1} | asdict(profile) | {"share_kind": str(profile.share_kind)}
        whole["options"]["env"] = dict(profile.options.env)
        assert to_json(versioned(profile)) == json.dumps(whole, indent=2) + "\n"
