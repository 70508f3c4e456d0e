"""A repository in an object store: its place, and its copy."""

from pathlib import Path

import pytest
from object_store import served

from controlplane.domain.errors import EngineError, InputError
from controlplane.stores.copying import Copied, copy
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


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def files(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_what_is_below_a_folder_is_copied_and_nothing_beside_it(tmp_path: Path) -> None:
    objects = {
        "all/models/m/1/model": b"w" * 100_000,
        "all/models/m/config.pbtxt": b"c",
        "all/models2/x": b"x",
    }
    with served(objects) as (_, endpoint):
        copied = copy(parse(f"s3://{endpoint}/bucket/all/models"), tmp_path / "to" / "models")
    assert copied == Copied(2, 100_001)
    assert files(tmp_path) == {"to/models/m/1/model": b"w" * 100_000, "to/models/m/config.pbtxt": b"c"}


def test_empty_objects_stand_for_folders(tmp_path: Path) -> None:
    objects = {
        "both/": b"",
        "both/1/": b"",
        "both/config.pbtxt": b"c",
        "m/": b"",
        "m/1/": b"",
        "m/1/empty": b"",
    }
    with served(objects) as (_, endpoint):
        copied = copy(parse(f"s3://{endpoint}/bucket"), tmp_path / "models")
    assert copied == Copied(2, 1)
    assert (tmp_path / "models" / "both" / "1").is_dir()
    assert files(tmp_path / "models") == {"both/config.pbtxt": b"c", "m/1/empty": b""}


def test_a_copy_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    with (
        served({"a": b"first", "m/model": b"weights"}, "m/model") as (_, endpoint),
        pytest.raises(EngineError, match=r"s3://http://127.*/bucket: "),
    ):
        copy(parse(f"s3://{endpoint}/bucket"), tmp_path / "models")
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_names_the_place(tmp_path: Path) -> None:
    with (
        served({}) as (_, endpoint),
        pytest.raises(EngineError, match=r"^s3://http://127.*/other: .*AWS_ACCESS_KEY_ID") as refusal,
    ):
        copy(parse(f"s3://{endpoint}/other"), tmp_path / "models")
    assert "?" not in str(refusal.value)


def test_an_empty_place_is_refused(tmp_path: Path) -> None:
    with served({"other/m": b"m"}) as (_, endpoint), pytest.raises(InputError, match="holds no file"):
        copy(parse(f"s3://{endpoint}/bucket/models"), tmp_path / "models")


def test_a_name_that_leads_out_of_the_copy_is_written_nowhere(tmp_path: Path) -> None:
    with served({"m/../../out": b"x"}) as (_, endpoint), pytest.raises((InputError, EngineError)):
        copy(parse(f"s3://{endpoint}/bucket"), tmp_path / "to" / "models")
    assert list(tmp_path.rglob("out")) == []
