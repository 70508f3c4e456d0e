"""Places in object stores, in Triton's notation."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.stores.url import StoreUrl, is_store, parse


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://b", StoreUrl("s3", "b", "")),
        ("s3://b/all/models/", StoreUrl("s3", "b", "all/models")),
        ("s3://https://host:9000/b/models", StoreUrl("s3", "b", "models", endpoint="https://host:9000")),
        ("gs://b/models", StoreUrl("gs", "b", "models")),
        ("as://account/container", StoreUrl("as", "container", "", account="account")),
        ("as://account/container/models", StoreUrl("as", "container", "models", account="account")),
    ],
)
def test_a_url_is_read_as_text_and_as_a_path_that_lost_its_slashes(text: str, url: StoreUrl) -> None:
    assert is_store(str(Path(text)))
    assert parse(text) == parse(str(Path(text))) == url
    assert parse(str(url)) == url


@pytest.mark.parametrize("text", ["s3://", "s3://https://host", "as://account", "gs://http://host/b"])
def test_a_url_that_names_too_little_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="REPOSITORY: "):
        parse(text)


@pytest.mark.parametrize("text", ["models", "/s3/models", "s3", "file:/models"])
def test_local_paths_are_none(text: str) -> None:
    assert not is_store(text)


@pytest.mark.parametrize(("text", "name"), [("s3://b", "b"), ("as://a/c/x/models", "models")])
def test_a_copy_is_called_like_the_last_part(text: str, name: str) -> None:
    assert parse(text).name == name
