"""A study whose results live in object storage: what runs again there is what runs again on a disk.

As profiles/kubernetes has it, but measured on this machine: which trials are due does not depend on where they run.
"""

import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import S3Server
from test_workflow_reruns import STUDY, Workspace, source

__all__ = ["source"]
RESULTS = "study/results"


class StoredStudy(Workspace):
    """A folder with a study, and the bucket that its results are in."""

    def __init__(self, folder: Path, source: Path, bucket: S3Server) -> None:
        super().__init__(folder, source)
        self.bucket = bucket

    @property
    def environment(self) -> dict[str, str]:
        keys = {"ENDPOINT_URL": self.bucket.url, "ACCESS_KEY": "open", "SECRET_KEY": "sesame"}
        return {**super().environment, **{f"SNAKEMAKE_STORAGE_S3_{name}": value for name, value in keys.items()}}

    def command(self, *arguments: str, root: Path = Path(__file__).parent.parent) -> list[str]:
        storage = ("--default-storage-provider", "s3", "--default-storage-prefix", "s3://bucket/study")
        return super().command(*storage, *arguments, root=root)

    def key(self, mode: str) -> str:
        return f"{RESULTS}/w/{mode}/fp16/r1/stages.json"

    def stages(self, mode: str) -> dict[str, object]:
        return dict(json.loads(self.bucket.objects[self.key(mode)][0]))

    def lose_notes(self) -> None:
        shutil.rmtree(self.folder / ".snakemake")

    def fail(self, mode: str) -> None:
        """As if its server had not started."""
        stages = self.stages(mode)
        stages["outcome"] = {"status": "failed", "stage": "launch", "reason": "told to fail", "excerpt": ""}
        self.bucket.objects[self.key(mode)] = (json.dumps(stages).encode(), self.bucket.objects[self.key(mode)][1])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Iterator[StoredStudy]:
    """A study of two cells that ran to the end. Tests work on copies."""
    with S3Server() as bucket:
        study = StoredStudy(tmp_path_factory.mktemp("finished"), source, bucket)
        study.write_study(STUDY)
        study.run()
        yield study


@pytest.fixture
def stored(finished: StoredStudy, tmp_path: Path) -> Iterator[StoredStudy]:
    shutil.copytree(finished.folder, tmp_path / "copy", symlinks=True)
    with S3Server() as bucket:
        bucket.objects.update(finished.bucket.objects)
        yield StoredStudy(tmp_path / "copy", finished.source, bucket)


def test_a_finished_study_has_nothing_to_do(stored: StoredStudy) -> None:
    assert stored.stages("mine")["outcome"]["status"] == "ok"  # type: ignore[index]
    assert not stored.due()


@pytest.mark.fault(
    "stored",
    "evidence of one trial, or all of it, is deleted in object storage while the report is still there",
    "measured anew, that trial or all of them",
)
def test_what_is_missing_in_the_bucket_is_measured_again(stored: StoredStudy) -> None:
    del stored.bucket.objects[stored.key("mine")]
    due = stored.due()
    assert (due["measure"], due["measure mine"]) == (1, 1)
    stored.bucket.objects.clear()
    assert stored.due()["measure"] == 2


def test_a_cell_that_failed_is_tried_again_by_the_next_run(stored: StoredStudy) -> None:
    stored.fail("mine")
    assert stored.due()["measure mine"] == 1
    stored.run()
    again = stored.stages("mine")
    assert (again["attempt"], again["outcome"]["status"]) == (2, "ok")  # type: ignore[index]
    assert not stored.due()


@pytest.mark.fault(
    "stored",
    "a bucket is copied: its files have new times, in any order",
    "nothing is measured, with or without the report and Snakemake's notes",
)
def test_a_copied_bucket_costs_no_measurement(stored: StoredStudy) -> None:
    keys = list(stored.bucket.objects)
    random.Random(4).shuffle(keys)
    for age_s, key in enumerate(keys):
        stored.bucket.objects[key] = (stored.bucket.objects[key][0], time.time() - age_s)
    assert stored.due()["measure"] == 0
    shutil.rmtree(stored.folder / "reports")
    stored.lose_notes()
    due = stored.due()
    assert (due["plan_server"], due["measure"]) == (0, 0) and due["write_pdf"] == 1


@pytest.mark.fault(
    "stored",
    "a study with a changed config is run from a new clone, on a bucket that holds the evidence of the old one",
    "what was measured by the old config is measured anew, and never shown under the new one",
)
def test_evidence_of_another_config_is_measured_anew_without_snakemakes_notes(stored: StoredStudy) -> None:
    stored.lose_notes()
    shutil.rmtree(stored.folder / "reports")
    stored.write_study(STUDY.replace("max_num_seqs: 8", "max_num_seqs: 4"))
    due = stored.due()
    assert (due["plan_server"], due["measure mine"], due["measure default"]) == (1, 1, 0)
    stored.run()
    assert stored.stages("mine")["trial"]["mode"]["args"] == {"max-num-seqs": 4}  # type: ignore[index]
    assert not stored.due()


@pytest.mark.fault(
    "host", "the object storage that holds the results does not answer", "one message before anything runs"
)
def test_a_storage_that_does_not_answer_is_said(stored: StoredStudy) -> None:
    closed = S3Server()
    address = closed.url
    closed.close()
    done = stored.snakemake("--storage-s3-retries", "1", SNAKEMAKE_STORAGE_S3_ENDPOINT_URL=address)
    assert done.returncode == 2
    assert "pdkv: the results cannot be looked at in object storage, s3://bucket/study/results" in done.stdout
    assert "Traceback" not in done.stdout
