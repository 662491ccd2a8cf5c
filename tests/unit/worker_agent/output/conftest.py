"""Nodes with copies of an output folder, over a real store in a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.storage.stores import Folder
from worker_agent.output.fetching import fetch
from worker_agent.output.saving import save
from worker_agent.output.taking import save_and_mark, take
from worker_agent.output.tree import open_tree
from worker_agent.output.values import Index, Outcome, Request


class Node:
    """A node's copy of the folder, with what its agent remembers of it."""

    def __init__(self, name: str, folder: Path, store: Folder) -> None:
        self.name, self.folder, self.store = name, folder, store
        self.index: Index | None = None
        self.joined = 0
        """Generation for which the folder was fetched beside ranks that trained elsewhere; 0: it was not."""
        self.bundle: dict[str, tuple[int, int]] = {}
        folder.mkdir()

    def save(
        self, generation: int, *, rank: int = 0, last: bool = True, most: int = 1 << 40, **fields: object
    ) -> Outcome:
        return self._do(save, generation, rank, last=last, max_bytes=most, **fields)

    def fetch(self, generation: int, *, rank: int = 0, most: int = 1 << 40, **fields: object) -> Outcome:
        return self._do(fetch, generation, rank, last=True, max_bytes=most, **fields)

    def join(self, generation: int) -> Outcome:
        """Fetch the folder for newcomers, while training goes on elsewhere."""
        self.joined = generation
        return self.fetch(generation)

    def give(self, generation: int, **fields: object) -> Outcome:
        """Save what rank 0 of the generation wrote, and mark it as the last of it."""
        return self._do(save_and_mark, generation, 0, last=True, max_bytes=1 << 40, mark=generation, **fields)

    def take(self, generation: int, *, before: int, own: tuple[int, int], stays: bool = False) -> Outcome:
        """Take the folder over for rank 0 of the generation, from the node that had it in generation `before`."""
        return self._do(
            take,
            generation,
            0,
            last=True,
            max_bytes=1 << 40,
            mark=before,
            own_version=own,
            fence=not stays,
        )

    def write(self, path: str, text: str = "x", *, age_s: float = 60.0) -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        os.utime(file, (time.time() - age_s,) * 2)
        return file

    def files(self) -> dict[str, str]:
        return {
            str(one.relative_to(self.folder)): one.read_text()
            for one in self.folder.rglob("*")
            if one.is_file()
        }

    def _do(self, what: Callable[..., Outcome], generation: int, rank: int, **fields: object) -> Outcome:
        given = {
            "do": {save: "save", fetch: "fetch", save_and_mark: "save", take: "take"}[what],
            "node": self.name,
            "generation": self.joined or generation,
            "joined": bool(self.joined),
            "version": (generation, rank),
            "now_s": time.time(),
            "index": self.index,
            "bundle": self.bundle,
            **fields,
        }
        with open_tree(self.folder, "") as tree:
            outcome = what(self.store, tree, Request.model_validate(given))
        self.index = outcome.index
        return outcome


@pytest.fixture
def store(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "store")


@pytest.fixture
def a(tmp_path: Path, store: Folder) -> Node:
    return Node("a", tmp_path / "a", store)


@pytest.fixture
def b(tmp_path: Path, store: Folder) -> Node:
    return Node("b", tmp_path / "b", store)
