"""The interface of an address."""

from __future__ import annotations

import pytest

from worker_agent.host.network import interface_of


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_the_loopback_interface_owns_its_addresses(address: str) -> None:
    assert interface_of(address) == "lo"


def test_no_interface_owns_the_address_of_another_host() -> None:
    assert interface_of("192.0.2.1") is None
    assert interface_of("no-such-host.invalid") is None
