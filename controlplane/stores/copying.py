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
    """An object: its path below the folder, and its size."""

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
        found = _objects(store)
        if not found:
            raise InputError("holds no file", file=str(url), field="REPOSITORY")
        files = _files(found)
        _fill(store, found, files, folder)
    except BaseError as error:
        hint = f"credentials come from the environment, by {_CREDENTIALS[url.scheme]}"
        raise EngineError(f"{url}: {_reason(error)}; {hint}") from error
    except OSError as error:
        raise EngineError(f"{folder}: {error.strerror or error}") from error
    return Copied(len(files), sum(one.size_bytes for one in files))


def _open(url: StoreUrl) -> ObjectStore:
    prefix = url.folder or None
    match url.scheme:
        case "s3":
            if url.endpoint is None:
                return S3Store(url.bucket, prefix=prefix)
            plain = url.endpoint.startswith("http:")
            return S3Store(
                url.bucket, prefix=prefix, endpoint=url.endpoint, client_options={"allow_http": plain}
            )
        case "gs":
            return GCSStore(url.bucket, prefix=prefix)
        case _:
            return AzureStore(url.bucket, prefix=prefix, account_name=url.account)


def _objects(store: ObjectStore) -> list[_Object]:
    return sorted(_Object(one["path"], one["size"]) for part in obstore.list(store) for one in part)


def _fill(store: ObjectStore, found: list[_Object], files: frozenset[_Object], folder: Path) -> None:
    """Copy into a folder beside, which takes its name once it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as beside:
        whole = Path(beside) / folder.name
        whole.mkdir()
        for one in found:
            target = whole / _inside(one.path)
            (target.parent if one in files else target).mkdir(parents=True, exist_ok=True)
            if one in files:
                _download(store, one.path, target)
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


def _inside(path: str) -> PurePosixPath:
    """Return a path that stays below its folder. Raises InputError."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts:
        raise InputError("would be written outside of the copy; rename the object", file=path)
    return parts


def _download(store: ObjectStore, path: str, target: Path) -> None:
    with target.open("wb") as file:
        for part in obstore.get(store, path):
            file.write(part)


def _reason(error: BaseError) -> str:
    """Return the first line of an error, without the queries of its URLs: they may hold a token."""
    return re.sub(r"\?\S+", "", str(error).strip().splitlines()[0])
