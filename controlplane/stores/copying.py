"""Copies of model repositories from object stores."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from controlplane.domain.errors import EngineError, InputError
from controlplane.stores.url import StoreUrl

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "as": "AZURE_STORAGE_ACCOUNT_KEY",
}
"""The variables of the environment that a user of the store most often sets."""


class Copied(NamedTuple):
    """The number of files copied, and their size."""

    files: int
    size_bytes: int


class _Object(NamedTuple):
    path: str
    size_bytes: int


def copy(url: StoreUrl, folder: Path) -> Copied:
    """Copy a repository into a new folder, whole or not at all.

    Credentials and regions come from the environment, by the names of each store's own tools. Raises
    InputError where the folder exists or the store holds no file there, EngineError where the store or the
    disk refuses.
    """
    if folder.exists():
        raise InputError("exists already; look at it, or remove it to copy anew", file=str(folder))
    try:
        store = _open(url)
        found = sorted(_Object(one["path"], one["size"]) for part in obstore.list(store) for one in part)
        if not found:
            raise InputError("holds no file", file=str(url), field="REPOSITORY")
        files = _files(found)
        _fill(store, found, files, folder)
    except BaseError as error:
        hint = f"credentials come from the environment, by {_CREDENTIALS[url.scheme]}"
        # The first line, without the queries of its URLs: they may hold a token.
        reason = re.sub(r"\?\S+", "", str(error).strip().splitlines()[0])
        raise EngineError(f"{url}: {reason}; {hint}") from error
    except OSError as error:
        raise EngineError(f"{folder}: {error.strerror or error}") from error
    return Copied(len(files), sum(one.size_bytes for one in files))


def _open(url: StoreUrl) -> ObjectStore:
    prefix = url.folder or None
    if url.scheme == "gs":
        return GCSStore(url.bucket, prefix=prefix)
    if url.scheme == "as":
        return AzureStore(url.bucket, prefix=prefix, account_name=url.account)
    if url.endpoint is None:
        return S3Store(url.bucket, prefix=prefix)
    plain = url.endpoint.startswith("http:")
    return S3Store(url.bucket, prefix=prefix, endpoint=url.endpoint, client_options={"allow_http": plain})


def _fill(store: ObjectStore, found: list[_Object], files: frozenset[_Object], folder: Path) -> None:
    """Copy into a folder beside, which takes its name once it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as beside:
        whole = Path(beside) / folder.name
        whole.mkdir()
        for one in found:
            inside = PurePosixPath(one.path)
            if inside.is_absolute() or ".." in inside.parts:
                problem = "would be written outside of the copy; rename the object"
                raise InputError(problem, file=one.path)
            target = whole / inside
            if one not in files:
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                for part in obstore.get(store, one.path):
                    file.write(part)
        whole.rename(folder)


def _files(found: Iterable[_Object]) -> frozenset[_Object]:
    """Return the objects that are files; the others stand for folders.

    Stores have no folders. Their tools keep an empty one, as the version of an ensemble, as an empty object:
    one with others below, or with a version's number for a name.
    """
    parents = {str(parent) for one in found for parent in PurePosixPath(one.path).parents}
    return frozenset(
        one
        for one in found
        if one.size_bytes > 0 or not (one.path in parents or re.fullmatch(r".+/\d+", one.path))
    )
