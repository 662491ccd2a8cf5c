from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.contract.output import (
    BadManifest,
    OutputEntry,
    OutputManifest,
    data_prefix,
    manifest_names,
    merge,
    newest,
    surplus,
)
from headway.contract.spec import JobSpec

_AT = datetime(2026, 1, 1, tzinfo=UTC)
_PATHS = ("snapshot.pt", "logs/run.txt", "logs", "a/b/c")


def entry(generation: int, rank: int = 0, content: int = 0, lineage: int = 1, **fields: Any) -> OutputEntry:
    key = f"{data_prefix(lineage, 'n')}{content:064x}"
    return OutputEntry(version=(generation, rank), size_bytes=1, parts=(key,), **fields)


def manifest(lineage: int, node: str = "n", sequence: int = 1, **fields: Any) -> OutputManifest:
    given_: dict[str, Any] = {"joined": False, "entries": {}, **fields}
    return OutputManifest(lineage=lineage, node=node, sequence=sequence, saved_at=_AT, **given_)


def keys_of(*manifests: OutputManifest) -> list[str]:
    return [one.key for one in manifests]


entries = st.builds(entry, st.integers(1, 4), st.integers(0, 2), st.integers(0, 3))
manifests = st.builds(
    manifest,
    st.integers(1, 4),
    st.sampled_from(["a", "b"]),
    st.integers(0, 3),
    joined=st.booleans(),
    entries=st.dictionaries(st.sampled_from(_PATHS), entries),
    removed=st.dictionaries(st.sampled_from(_PATHS), st.tuples(st.integers(1, 4), st.integers(0, 2))),
)


@given(st.lists(manifests, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_manifests_has_no_influence(found: list[OutputManifest], random: Any) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)
    assert merge(shuffled) == merge(found)


@given(st.lists(manifests, max_size=5))
def test_nothing_lies_below_a_file_and_every_winner_is_of_the_newest_generation(
    found: list[OutputManifest],
) -> None:
    merged = merge(found).entries
    assert not any(inner.startswith(f"{path}/") for path in merged for inner in merged)
    for path, winner in merged.items():
        versions = [one.entries[path].version for one in found if path in one.entries]
        versions += [one.removed[path] for one in found if path in one.removed]
        assert winner.version[0] == max(version[0] for version in versions)


def test_the_node_of_the_lowest_rank_wins_and_the_conflict_is_named() -> None:
    first = manifest(2, "a", entries={"log.txt": entry(2, 0, 1), "same": entry(2, 0, 7)})
    second = manifest(2, "b", entries={"log.txt": entry(2, 4, 2), "same": entry(2, 4, 7), "own": entry(2, 4)})
    merged = merge([second, first])
    assert merged.entries["log.txt"].version == (2, 0)
    assert set(merged.entries) == {"log.txt", "same", "own"}
    assert merged.conflicts == ("log.txt",)


def test_what_one_node_inherited_and_another_changed_is_the_changed_one() -> None:
    inherited = manifest(3, "a", entries={"snapshot.pt": entry(2, 0, 1)}, removed={"old": (3, 0)})
    changed = manifest(3, "b", entries={"snapshot.pt": entry(3, 1, 2), "old": entry(1, 0)})
    merged = merge([inherited, changed])
    assert merged.entries == {"snapshot.pt": changed.entries["snapshot.pt"]}
    assert merged.conflicts == ()


def test_a_save_of_a_lost_node_never_comes_before_a_newer_start() -> None:
    lost = [manifest(1, "a", sequence) for sequence in range(4)]
    start = manifest(2, "b")
    joined = manifest(3, "c", joined=True)
    names = manifest_names(keys_of(*lost, start, joined))
    assert [one.key for one in newest(names)] == keys_of(start, joined)
    assert [one.key for one in newest(names, before=3)] == keys_of(start)
    assert [one.key for one in newest(names, before=2)] == keys_of(lost[-1])


def test_newcomers_add_to_those_that_train() -> None:
    gang, late = manifest(1, "a", 5), manifest(2, "b", 1, joined=True)
    assert [one.key for one in newest(manifest_names(keys_of(gang, late)))] == keys_of(gang, late)


def test_old_manifests_and_parts_that_nothing_names_are_surplus() -> None:
    used, unused = entry(2, 0, 1, lineage=1), entry(1, 0, 2, lineage=1)
    before, kept, newer = manifest(1), manifest(2, entries={"x": used}), manifest(3)
    keys = [
        *keys_of(before, kept, newer),
        *used.parts,
        *unused.parts,
        entry(3, lineage=3).parts[0],
        "step-1/MANIFEST",
    ]
    assert surplus(keys, [kept], before=3) == [before.key, *unused.parts]


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../b", "", "a//b", ".", "a\0b", "x" * 2000])
def test_a_manifest_with_a_path_that_leaves_the_folder_is_refused(path: str) -> None:
    text = manifest(1, entries={"a": entry(1)}).model_dump(mode="json")
    text["entries"] = {path: text["entries"]["a"]}
    with pytest.raises(BadManifest):
        OutputManifest.parse(json.dumps(text).encode())


@pytest.mark.parametrize("part", ["../../secrets", "output/data/1-n/x", "step-1/0-0.safetensors"])
def test_a_part_is_one_of_the_output(part: str) -> None:
    text = manifest(1, entries={"a": entry(1)}).model_dump(mode="json")
    text["entries"]["a"]["parts"] = [part]
    with pytest.raises(BadManifest):
        OutputManifest.parse(json.dumps(text).encode())


@pytest.mark.parametrize(
    "wrong", [{"dir": "../up"}, {"dir": "/tmp"}, {"dir": ""}, {"every": 0}, {"max_size": 0}]
)
def test_a_wrong_output_folder_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({"name": "job", "run": "x", "output": wrong})


@pytest.mark.parametrize(
    ("given_", "plain"), [(".", "."), ("./", "."), ("results/", "results"), ("a//./b", "a/b")]
)
def test_the_path_of_an_output_folder_is_made_plain(given_: str, plain: str) -> None:
    spec = JobSpec.model_validate({"name": "job", "run": "x", "output": {"dir": given_, "every": "2m"}})
    assert (spec.output.dir, spec.output.every) == (plain, 120.0)
