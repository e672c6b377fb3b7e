"""The files below ``results/``, wherever Snakemake keeps them: on this disk, or in object storage.

Looked at before a run, to find out what is due. In object storage by what every storage plugin of Snakemake offers; its
providers and objects are passed in, and nothing is imported from there.
"""

import asyncio
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from pdkv.errors import UserError


class ResultFiles(Protocol):
    """Paths are those of the workflow, ``results/…``."""

    def holds(self, path: str) -> bool:
        """Whether the file is there."""

    def read(self, path: str) -> bytes | None:
        """Its bytes; None if it is not there."""

    def known_as(self, path: str) -> str:
        """What Snakemake calls the file among the outputs of its jobs."""


class FilesOnDisk:
    """Results in this folder."""

    def holds(self, path: str) -> bool:
        """Whether the file is there."""
        return os.path.exists(path)  # noqa: PTH110 - asked of every file of a study of 10,000 trials

    def read(self, path: str) -> bytes | None:
        """Its bytes; None if it is not there, or can't be read."""
        try:
            return Path(path).read_bytes()
        except OSError:
            return None

    def known_as(self, path: str) -> str:
        """The path itself."""
        return path


class StoredFiles:
    """Results in object storage: ``provider`` is Snakemake's, ``prefix`` what stands there before ``results/``.

    What is there is asked for once, here: one listing, where the plugin gives one (S3 does). Raises
    :class:`UserError` where the storage does not answer.
    """

    def __init__(self, provider: Any, prefix: str | None) -> None:
        self._provider = provider
        self._prefix = f"{prefix.removesuffix('/')}/" if prefix else ""
        cache = SimpleNamespace(exists_in_storage={}, exists_local={}, mtime={}, size={}, checksum={})
        probe = self._object("results/any")
        try:
            asyncio.run(probe.inventory(cache))
            known = {key for key, is_there in cache.exists_in_storage.items() if is_there}
            listed = known - {str(probe.local_path()), probe.get_inventory_parent()}
            # What is listed is all; an empty list may come from a plugin that lists nothing.
            self._listed = listed if listed or not self._object("results").exists() else None
        except Exception as error:
            raise UserError(
                f"the results cannot be looked at in object storage, {self._prefix}results: {error}",
                remedy="mend default-storage-prefix, or the address and keys of the storage",
            ) from error

    def holds(self, path: str) -> bool:
        """Whether the file was there when this was made."""
        if self._listed is None:
            return bool(self._object(path).exists())
        return self.known_as(path) in self._listed

    def read(self, path: str) -> bytes | None:
        """Its bytes, fetched now; None if it was not there."""
        if not self.holds(path):
            return None
        # Not to where Snakemake keeps its copies: by their times it judges which of them are old.
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "copy")
            stored = self._object(path)
            stored.set_local_path(copy)
            stored.retrieve_object()
            return copy.read_bytes()

    def known_as(self, path: str) -> str:
        """Where Snakemake keeps its copy of the file."""
        return str(self._object(path).local_path())

    def _object(self, path: str) -> Any:
        return self._provider.object(self._prefix + path)
