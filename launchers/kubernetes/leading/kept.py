"""What is too large for a Fleet's status: ConfigMaps with a compressed document each."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from typing import Any

from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap

from controlplane.domain.errors import InputError
from launchers.kubernetes import names
from launchers.kubernetes.api import ClusterApi

FOLLOWED = "following"
"""The plan by which a leader follows the load, and the generation that it follows."""
PROFILES = "profiles"
"""The profiles with which it plans."""
_CONTENT = "content.json.gz"
_LARGEST = 1 << 20
"""The API server's limit."""


def keep(api: ClusterApi, fleet: str, what: str, document: Any) -> None:
    """Replace one of a fleet's documents. Raises EngineError, and InputError for one that is too large."""
    packed = base64.b64encode(gzip.compress(json.dumps(document).encode(), mtime=0)).decode()
    if len(packed) > _LARGEST:
        raise InputError(f"{len(packed)} bytes are more than a ConfigMap holds ({_LARGEST})", field=what)
    labels = {**names.fleet_labels(fleet), names.COMPONENT: what}
    metadata = ObjectMeta(name=names.object_name(fleet, what), labels=labels)
    api.apply(ConfigMap(metadata=metadata, binaryData={_CONTENT: packed}))


def kept(api: ClusterApi, fleet: str, what: str) -> Any:
    """Return one of a fleet's documents; None where there is none.

    Raises EngineError, and InputError for one that another program changed.
    """
    name = names.object_name(fleet, what)
    found = api.get(ConfigMap, name)
    packed = ((found.binaryData if found is not None else None) or {}).get(_CONTENT)
    if packed is None:
        return None
    try:
        document = json.loads(gzip.decompress(base64.b64decode(packed)))
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise InputError(f"cannot be read: {error}", file=f"ConfigMap {name}", field=_CONTENT) from error
    if not isinstance(document, dict):
        raise InputError("is no JSON object", file=f"ConfigMap {name}", field=_CONTENT)
    return document


def forget(api: ClusterApi, fleet: str, *which: str) -> None:
    """Remove documents of a fleet. Raises EngineError."""
    for what in which:
        api.delete(ConfigMap, names.object_name(fleet, what))
