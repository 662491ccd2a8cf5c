"""Access of ranks to the checkpoints of their job only, with short-lived keys or with signed requests."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from headway.contract.credentials import SignReply, SignRequest, StorageAccess, StorageRequest, StorageTicket
from service.domain.shared.errors import NotFound, WrongToken
from service.usecases.nodes.credentials import check_holds
from service.usecases.nodes.join import digest_token
from service.usecases.ports.credentials import NodeAccess, StorageSigner, Ticket
from service.usecases.ports.transactions import Transactions
from service.usecases.storage.checkpoints import checkpoint_prefix

TICKET_S = 3600
URL_S = 3600
"""Validity of a signed URL in seconds.

A slow upload of a part may take long; stores check the expiry when a request begins.
"""
_SPARE_S = 300


async def storage_access(
    transactions: Transactions, access: NodeAccess, node_id: str, wanted: StorageRequest, now: datetime
) -> StorageAccess:
    """Return a ticket (if requests are signed) or keys for the checkpoints of a job that the node runs.

    Raises:
        NotFound: the node does not run this generation.
        Unavailable: the provider does not answer.
    """
    if access.signer is not None:
        return StorageAccess(ticket=await _ticket(transactions, access.signer, node_id, wanted, now))
    async with transactions.begin() as tx:
        await check_holds(tx.credentials, node_id, wanted.job_id, wanted.generation)
    prefix = checkpoint_prefix(wanted.job_id)
    return StorageAccess(credentials=await access.storage.keys_for(prefix, f"{node_id}-{wanted.generation}"))


async def _ticket(
    transactions: Transactions, signer: StorageSigner, node_id: str, wanted: StorageRequest, now: datetime
) -> StorageTicket:
    text = secrets.token_urlsafe(32)
    until = now + timedelta(seconds=TICKET_S)
    ticket = Ticket(node_id=node_id, job_id=wanted.job_id, generation=wanted.generation, expires_at=until)
    async with transactions.begin() as tx:
        await check_holds(tx.credentials, node_id, wanted.job_id, wanted.generation)
        await tx.credentials.add_ticket(digest_token(text), ticket, now)
    return StorageTicket(uri=signer.uri_of(checkpoint_prefix(wanted.job_id)), ticket=text, expires_at=until)


async def sign(
    transactions: Transactions, signer: StorageSigner | None, sha256: str, wanted: SignRequest, now: datetime
) -> SignReply:
    """Return signed requests for the bearer of a ticket.

    Raises:
        WrongToken: the ticket is unknown or has expired.
        NotFound: its node no longer runs that generation, so a leftover process can neither read nor write.
        Unavailable: the service has no keys now.
    """
    async with transactions.begin() as tx:
        ticket = await tx.credentials.find_ticket(sha256)
        if signer is None or ticket is None or ticket.expires_at <= now:
            raise WrongToken("this storage ticket is unknown or has expired; the agent of the run renews it.")
        try:
            await check_holds(tx.credentials, ticket.node_id, ticket.job_id, ticket.generation)
        except NotFound:
            raise NotFound(
                f"the node of this ticket does not run generation {ticket.generation} of {ticket.job_id} any more."
            ) from None
    urls = await signer.sign(checkpoint_prefix(ticket.job_id), wanted.calls, URL_S)
    return SignReply(urls=urls, expires_at=now + timedelta(seconds=URL_S - _SPARE_S))
