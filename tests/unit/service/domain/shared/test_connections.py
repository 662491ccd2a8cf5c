"""The limits on concurrent work add up to the pool, whatever its size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.domain.shared.connections import CONNECTIONS, ConnectionShares, divide_connections


@given(st.integers(5, 500))
def test_every_kind_of_work_has_connections_and_none_waits_for_another(pool: int) -> None:
    shares = divide_connections(pool)
    assert shares.pool == pool
    assert min(shares.requests, shares.pages, shares.batches) >= 1


def test_the_shares_of_the_service() -> None:
    assert ConnectionShares(requests=13, pages=4, batches=3) == CONNECTIONS
    assert CONNECTIONS.pool == 20
