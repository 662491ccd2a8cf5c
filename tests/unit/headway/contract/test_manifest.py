from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.manifest import MANIFEST, CheckpointPart, Manifest, Name, complete, names, surplus

numbers = st.integers(0, 10**14)
some_names = st.builds(Name, numbers, numbers, numbers, numbers)

GOOD = Manifest(
    generation=3,
    epoch=2,
    samples_in_epoch=50,
    samples=250,
    parts=(CheckpointPart("0-0.safetensors", 7, "ab"), CheckpointPart("index.json", 3, "cd")),
)


@given(name=some_names)
def test_a_name_can_be_read_back(name: Name) -> None:
    assert Name.parse(str(name)) == name


def test_what_is_not_a_name_is_none() -> None:
    texts = ("", "tmp", "1-2-3", "00000001-000000-00000000000x", "00000001-000000-000000000000-")
    assert [Name.parse(text) for text in texts] == [None] * 5


def test_a_name_is_never_used_twice() -> None:
    first = Name(1, 2, 3)
    assert first.unused([]) == first
    assert first.unused([f"{first}/part", f"{Name(1, 2, 4, 8)}/part"]) == Name(1, 2, 3, 1)
    assert first.unused([f"{first}/part", f"{Name(1, 2, 3, 4)}/part"]) == Name(1, 2, 3, 5)
    assert first < Name(1, 2, 3, 1) < Name(1, 2, 3, 10) < Name(1, 2, 4)


@given(
    whole=st.sets(some_names, max_size=8),
    broken=st.sets(some_names, max_size=4),
    generation=numbers,
    keep=st.integers(1, 4),
)
def test_what_may_be_deleted(whole: set[Name], broken: set[Name], generation: int, keep: int) -> None:
    keys = [f"{name}/0-0.safetensors" for name in whole | broken] + [f"{name}/{MANIFEST}" for name in whole]
    gone = surplus(keys, generation=generation, keep=keep)
    left = complete([key for key in keys if key not in gone])
    ours = sorted(name for name in whole if name.generation <= generation)
    assert [name for name in left if name.generation <= generation] == ours[-keep:]
    assert all(name.generation <= generation for name in names(gone))
    manifests = [key.endswith(MANIFEST) for key in gone]
    assert manifests == sorted(manifests, reverse=True), "manifests go first"


def test_a_manifest_can_be_read_back() -> None:
    assert Manifest.from_text(GOOD.to_text()) == GOOD
    assert GOOD.size_bytes == 10


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b"\xff\xfe", b'{"format": 2}', b'{"format": 1, "sha256": ""}', GOOD.to_text()[:-9]],
)
def test_what_is_no_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="its manifest"):
        Manifest.from_text(text)


@given(place=st.integers(0, len(GOOD.to_text()) - 1), flip=st.integers(1, 255))
def test_no_changed_byte_goes_unseen(place: int, flip: int) -> None:
    text = bytearray(GOOD.to_text())
    text[place] ^= flip
    try:
        seen = Manifest.from_text(bytes(text))
    except ValueError:
        return
    assert seen == GOOD, "white space may change, what it says may not"
