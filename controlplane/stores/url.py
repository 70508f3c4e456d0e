"""The place of a model repository in an object store, in Triton's notation. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from controlplane.domain.errors import InputError

# A URL that was read as a path has lost one of two slashes: s3://bucket is s3:/bucket.
_URL = re.compile(
    r"(?P<scheme>s3|gs|as):/+(?:(?P<http>https?):/+(?P<host>[^/]+)/+)?(?P<bucket>[^/:]+)(?:/+(?P<rest>.*))?"
)
_STORE = re.compile(r"(s3|gs|as):/")


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A folder of an object store.

    `s3://[http://HOST/]BUCKET/FOLDER`, `gs://BUCKET/FOLDER` or `as://ACCOUNT/CONTAINER/FOLDER`.

    `endpoint` is the address of a store that is not Amazon's; `account` is Azure's. `folder` may be empty.
    """

    scheme: str
    bucket: str
    folder: str
    endpoint: str | None = None
    account: str | None = None

    @property
    def name(self) -> str:
        """The last part of the place: the folder, else the bucket."""
        return PurePosixPath(self.folder).name or self.bucket

    def __str__(self) -> str:
        """Return the URL."""
        parts = [self.endpoint, self.account, self.bucket, self.folder]
        return f"{self.scheme}://{'/'.join(part for part in parts if part)}"


def is_store(place: str) -> bool:
    """Return whether a place is in an object store."""
    return _STORE.match(place) is not None


def parse(place: str) -> StoreUrl:
    """Return the place that a URL names. Raises InputError."""
    found = _URL.fullmatch(place)
    if found is None:
        raise InputError("names no bucket: s3://BUCKET/FOLDER", file=place, field="REPOSITORY")
    scheme, bucket, rest = found["scheme"], found["bucket"], (found["rest"] or "").strip("/")
    endpoint = f"{found['http']}://{found['host']}" if found["host"] else None
    if endpoint is not None and scheme != "s3":
        raise InputError("only s3:// takes the address of a store", file=place, field="REPOSITORY")
    if scheme != "as":
        return StoreUrl(scheme, bucket, rest, endpoint)
    container, _, folder = rest.partition("/")
    if not container:
        raise InputError("names no container: as://ACCOUNT/CONTAINER/FOLDER", file=place, field="REPOSITORY")
    return StoreUrl(scheme, container, folder.strip("/"), account=bucket)
