"""Certificates of a machine that other hosts reach."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

from headway.local.certificates import identity
from headway.local.ports import HOST

NOW = datetime.now(UTC)


def test_certificate_is_kept_until_its_address_changes_or_it_is_about_to_end(tmp_path: Path) -> None:
    first = identity(tmp_path, "192.0.2.1", NOW).certificate.read_bytes()
    assert identity(tmp_path, "192.0.2.1", NOW + timedelta(days=700)).certificate.read_bytes() == first
    later = identity(tmp_path, "192.0.2.1", NOW + timedelta(days=800)).certificate.read_bytes()
    assert later != first
    assert identity(tmp_path, "2001:db8::1", NOW + timedelta(days=800)).certificate.read_bytes() != later


def test_only_its_user_reads_the_key(tmp_path: Path) -> None:
    assert stat.S_IMODE(identity(tmp_path, HOST, NOW).key.stat().st_mode) == 0o600
