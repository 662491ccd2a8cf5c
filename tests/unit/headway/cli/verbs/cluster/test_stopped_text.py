"""Advice after `headway down` and Ctrl-C: the command that continues the jobs of this folder."""

from __future__ import annotations

from pathlib import Path

from headway.cli.verbs.cluster.local import stopped_text


def test_the_advice_after_a_stop_names_the_folder_that_was_given() -> None:
    assert "`headway up`" in stopped_text(None)
    assert "`headway up --data '/my data'`" in stopped_text(Path("/my data"))
