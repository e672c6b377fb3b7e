"""The files below results/: on this disk and in object storage they are asked for in the same way."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_server import S3Server
from snakemake_storage_plugin_s3 import StorageProvider, StorageProviderSettings

from pdkv.result_files import FilesOnDisk, StoredFiles

STAGES = "results/w/default/fp16/r1/stages.json"
NONE = "results/w/default/fp16/r1/plan.json"


@pytest.fixture
def bucket() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def provider_of(bucket: S3Server, folder: Path) -> Any:
    settings = StorageProviderSettings(endpoint_url=bucket.url, access_key="open", secret_key="sesame", retries=1)
    return StorageProvider(local_prefix=folder / "s3", logger=logging.getLogger(), settings=settings, is_default=True)


def put(bucket: S3Server, path: str, data: bytes = b"{}") -> None:
    bucket.objects[f"study/{path}"] = (data, 0.0)


def test_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(STAGES).parent.mkdir(parents=True)
    Path(STAGES).write_bytes(b"{}")
    files = FilesOnDisk()
    assert files.holds(STAGES) and files.read(STAGES) == b"{}" and files.known_as(STAGES) == STAGES
    assert not files.holds(NONE) and files.read(NONE) is None


@pytest.mark.parametrize("prefix", ["s3://bucket/study", "s3://bucket/study/"])
def test_in_object_storage(bucket: S3Server, tmp_path: Path, prefix: str) -> None:
    put(bucket, STAGES, b'{"attempt": 1}')
    files = StoredFiles(provider_of(bucket, tmp_path), prefix)
    assert files.holds(STAGES) and files.read(STAGES) == b'{"attempt": 1}'
    assert not files.holds(NONE) and files.read(NONE) is None
    # Snakemake's own copy of the file; what is read here leaves none there, which would pass for a newer one.
    copy = Path(files.known_as(STAGES))
    assert copy == tmp_path / "s3/bucket/study" / STAGES and not copy.exists()


@pytest.mark.parametrize("stored", [0, 2])
def test_what_is_there_is_listed_once(bucket: S3Server, tmp_path: Path, stored: int) -> None:
    """A study asks for seven files of each trial, and Snakemake asks for each of them again."""
    paths = [f"results/w/default/fp16/r{repeat}/stages.json" for repeat in range(200)]
    for path in paths[:stored]:
        put(bucket, path)
    files = StoredFiles(provider_of(bucket, tmp_path), "s3://bucket/study")
    put(bucket, "results/late.json")
    asked = bucket.requests
    assert 0 < asked < 10
    assert [files.holds(path) for path in paths] == [number < stored for number in range(200)]
    assert bucket.requests == asked


class UnlistedObject:
    """An object of a plugin whose inventory is empty."""

    def __init__(self, query: str, there: set[str]) -> None:
        self.query, self.there = query, there

    async def inventory(self, cache: Any) -> None:
        pass

    def get_inventory_parent(self) -> None:
        return None

    def exists(self) -> bool:
        return any(path == self.query or path.startswith(f"{self.query}/") for path in self.there)

    def local_path(self) -> Path:
        return Path("copies", self.query)


class UnlistedProvider:
    def __init__(self, *there: str) -> None:
        self.there = set(there)

    def object(self, query: str) -> UnlistedObject:
        return UnlistedObject(query, self.there)


def test_a_storage_without_listing_is_asked_for_each_file() -> None:
    files = StoredFiles(UnlistedProvider(f"folder/{STAGES}"), "folder")
    assert files.holds(STAGES) and not files.holds(NONE)
    assert not StoredFiles(UnlistedProvider(), None).holds(STAGES)
