"""Names of hosts in the errors of ranks."""

from __future__ import annotations

import pytest

from service.domain.life.unreached import with_host_names

NAMES = {"10.0.0.2": "host-b", "fd00::2": "host-b"}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "host-a cannot reach 10.0.0.2:41000: refused",
            "host-a cannot reach host-b:41000 (10.0.0.2): refused",
        ),
        ("a cannot reach [fd00::2]:41000: no answer", "a cannot reach host-b:41000 (fd00::2): no answer"),
        ("a cannot reach 10.0.0.9:41000: no answer", "a cannot reach 10.0.0.9:41000: no answer"),
        ("not all 2 members of generation 2 arrived", "not all 2 members of generation 2 arrived"),
    ],
)
def test_an_address_of_a_node_has_its_name_beside_it(said: str, expected: str) -> None:
    assert with_host_names(said, NAMES) == expected
