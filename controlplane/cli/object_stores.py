"""Model repositories in object stores, in Triton's notation: refused with the command that copies them."""

from __future__ import annotations

import re
from pathlib import Path

from controlplane.domain.errors import InputError

# A path has lost one of two slashes: s3://bucket is s3:/bucket.
_STORE = re.compile(r"(?P<scheme>s3|gs|as):/+(?:(?P<endpoint>https?):/+(?P<host>[^/]+)/)?(?P<place>.*)")


def local_repository(path: Path) -> Path:
    """Return a local path. Raises InputError for an object store."""
    found = _STORE.fullmatch(str(path))
    if found is None:
        return path
    raise InputError(
        f"{found['scheme']}://{found['place']} is not read: plans and servers need the models' files in a "
        f"local folder. Copy it (`{_copying(found)}`) or mount it, and name that folder",
        field="repository",
    )


def _copying(store: re.Match[str]) -> str:
    scheme, place = store["scheme"], store["place"]
    if scheme == "s3":
        endpoint = f" --endpoint-url {store['endpoint']}://{store['host']}" if store["host"] else ""
        return f"aws s3 sync{endpoint} s3://{place} models"
    if scheme == "gs":
        return f"gcloud storage rsync --recursive gs://{place} models"
    account, _, folder = place.partition("/")
    return f"azcopy copy --recursive https://{account}.blob.core.windows.net/{folder} models"
