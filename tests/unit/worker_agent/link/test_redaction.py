"""Secrets never leave the host, however a program prints them."""

from __future__ import annotations

import base64
import json
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_agent.host.folders import LoggedRun, RunFolder
from worker_agent.link.redaction import HideAll, Redactor
from worker_agent.link.secrets import RunSecrets
from worker_agent.link.service_api import Refused
from worker_agent.logs.pieces import CHUNK_BYTES
from worker_agent.logs.shipping import LogShipper

TOKEN = "hw_" + "aB3_-" * 8 + "xyz"
PRINTED = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs",), exclude_characters="*"), min_size=4, max_size=40
)
SECRETS = st.lists(PRINTED, min_size=1, max_size=3, unique=True)


class Storage:
    """The service's copy of one rank's output."""

    def __init__(self) -> None:
        self.data = bytearray()

    def ship_log(
        self, job_id: str, generation: int, rank: int, offset: int, data: bytes, *, present_rank: int
    ) -> None:
        assert offset <= len(self.data), "no holes"
        self.data[offset : offset + len(data)] = data


def written(pieces: Sequence[bytes], env: dict[str, str]) -> tuple[bytes, list[bytes]]:
    """Return the stored output after all pieces, and after each of them."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "job" / "1")
        run.path.mkdir(parents=True)
        secrets = RunSecrets(lambda job, generation: env)
        secrets.fetch(run.name, "job", 1)
        storage, seen = Storage(), []
        shipper = LogShipper(storage, threading.Event(), secrets=secrets)
        shipper.watch(LoggedRun(run, (0,), has_secrets=True))
        for piece in pieces:
            with run.log(0).open("ab") as file:
                file.write(piece)
            for _ in range(2):  # the second time, a line without an end counts as one
                shipper.run_once()
                seen.append(bytes(storage.data))
        shipper.over(run.name)
        shipper.run_once()
        return bytes(storage.data), seen


@given(SECRETS, st.lists(st.text(max_size=12), min_size=1, max_size=6), st.data())
def test_a_secret_never_reaches_storage_in_whatever_pieces_it_is_printed(
    values: list[str], words: list[str], data: st.DataObject
) -> None:
    parts = data.draw(st.permutations([*words, *values, TOKEN]))
    output = "".join(parts).encode(errors="replace")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=8)))
    pieces = [output[a:b] for a, b in zip([0, *cuts], [*cuts, len(output)], strict=True)]
    stored, seen = written(pieces, {f"S{i}": value for i, value in enumerate(values)})
    assert len(stored) == len(output)
    for one in [stored, *seen]:
        for value in [*values, TOKEN]:
            assert value.encode() not in one
    # Nothing else is changed: what differs is an asterisk, and lies in a secret or a token.
    assert all(a == b or b == ord("*") for a, b in zip(output, stored, strict=True))


@given(st.binary(max_size=200), PRINTED)
def test_what_holds_no_secret_is_left_as_it_is(output: bytes, value: str) -> None:
    redactor = Redactor([value])
    if not list(redactor.spans(output)):
        assert redactor.mask(output) == output
        assert redactor.begun(output) <= len(output)


@given(PRINTED, st.data())
def test_the_beginning_of_a_secret_is_seen_at_the_end(value: str, data: st.DataObject) -> None:
    raw = value.encode()
    part = raw[: data.draw(st.integers(1, len(raw) - 1))]
    assert Redactor([value]).begun(b"\x00" + part) <= 1


def test_the_beginning_of_a_secret_is_not_shipped_before_its_end_is_known() -> None:
    _, seen = written([b"key: ABCDE", b"FGHIJ\n"], {"K": "ABCDEFGHIJ"})
    assert seen[1] == b"key: "
    assert seen[3] == b"key: **********\n"


def test_the_beginning_of_a_secret_at_the_very_end_is_hidden() -> None:
    stored, _ = written([b"killed while printing ABCDEFGH"], {"K": "ABCDEFGHIJ"})
    assert stored == b"killed while printing ********"


def test_a_secret_across_the_border_of_two_chunks_is_hidden() -> None:
    value = "0123456789abcdef"
    output = b"x" * (CHUNK_BYTES - 7) + value.encode() + b"\n" + b"y" * 100 + b"\n"
    stored, _ = written([output], {"K": value})
    assert stored == output.replace(value.encode(), b"*" * len(value))


def test_overlapping_secrets_are_hidden_whole() -> None:
    assert Redactor(["abcdef", "defghi"]).mask(b"-abcdefghi-") == b"-*********-"
    assert Redactor(["abab"]).mask(b"-ababab-") == b"-******-"


@pytest.mark.parametrize(
    "printed",
    [
        lambda value: value,
        lambda value: json.dumps({"key": value}),
        lambda value: f"https://host/?key={quote(value, safe='')}",
        lambda value: base64.b64encode(value.encode()).decode(),
    ],
)
@pytest.mark.parametrize(
    "value",
    ["pass word/+=&1", "tab\there\"and'quotes", "-----BEGIN KEY-----\nabcdefghijkl\n-----END KEY-----"],
)
def test_other_ways_to_write_it(value: str, printed) -> None:
    text = Redactor([value]).text(f"<{printed(value)}>")
    for line in (*value.splitlines(), json.dumps(value)[1:-1], base64.b64encode(value.encode()).decode()):
        assert line not in text


def test_the_lines_of_a_secret_are_hidden_one_by_one() -> None:
    key = "-----BEGIN KEY-----\nMIIabcdefgh\n-----END KEY-----"
    assert "MIIabcdefgh" not in Redactor([key]).text("rank 0: -----BEGIN KEY-----\nrank 0: MIIabcdefgh\n")


def test_messages_keep_their_kind_and_numbers() -> None:
    said = {
        "type": "metrics",
        "values": {"loss": 0.5, "metrics!": 1.0},
        "uri": "s3://u:metrics!@b",
        "at": [1, "metrics!"],
    }
    hidden = Redactor(["metrics!"]).fields(said)
    assert hidden["type"] == "metrics"
    assert hidden["values"]["loss"] == 0.5
    assert "metrics!" not in json.dumps(hidden)
    assert Redactor(["metrics"]).fields(said)["type"] == "metrics"


def test_tokens_are_hidden_without_any_secret() -> None:
    assert TOKEN not in Redactor().text(f"HEADWAY_TOKEN={TOKEN} python")
    assert Redactor().text("hw_short and who_am_i") == "hw_short and who_am_i"


def test_nothing_is_shipped_before_secrets_are_known_and_all_is_hidden_if_they_never_are(
    tmp_path: Path,
) -> None:
    def gone(job: str, generation: int) -> dict[str, str]:
        raise Refused(404, "the secret is gone")

    run = RunFolder(tmp_path / "job" / "1")
    run.path.mkdir(parents=True)
    run.log(0).write_bytes(b"swordfish\nand more\n")
    secrets, storage = RunSecrets(gone), Storage()
    shipper = LogShipper(storage, threading.Event(), secrets=secrets)
    shipper.watch(LoggedRun(run, (0,), has_secrets=True))
    shipper.over(run.name)
    shipper.run_once()
    assert not storage.data
    assert not run.shipped.exists()
    secrets.fetch_again(run.name, "job", 1)
    shipper.run_once()
    assert storage.data == b"*********\n********\n"
    assert run.shipped.exists()
    assert secrets.redactor(run.name, has_secrets=True) is None, "forgotten with the run"


def test_hiding_all_leaves_messages() -> None:
    assert HideAll().fields({"type": "progress", "epoch": 1}) == {"type": "progress", "epoch": 1}
