"""How ranks reach the checkpoints of their job and nothing else: by short-lived keys, or by requests that are signed for them."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from headway.contract.credentials import SignReply, SignRequest, StorageAccess, StorageRequest, StorageTicket
from service.domain.errors import NotFound, WrongToken
from service.usecases.join import digest_token
from service.usecases.node_credentials import check_holds
from service.usecases.node_ports import NodeAccess, StorageSigner, Ticket
from service.usecases.ports import Transactions
from service.usecases.retain import checkpoint_prefix

TICKET_S = 3600
URL_S = 3600
"""A part of a checkpoint may take long on a slow line; a store looks at the end when a request begins."""
_SPARE_S = 300


async def storage_access(
    transactions: Transactions, access: NodeAccess, node_id: str, wanted: StorageRequest, now: datetime
) -> StorageAccess:
    """A ticket where requests are signed, else keys, for the checkpoints of a job that the node runs.

    Raises:
        NotFound: the node does not run this generation.
        Unavailable: the provider does not answer.
    """
    if access.signer is not None:
        return StorageAccess(ticket=await _ticket(transactions, access.signer, node_id, wanted, now))
    async with transactions.begin() as tx:
        await check_holds(tx.held_runs, node_id, wanted.job_id, wanted.generation)
    prefix = checkpoint_prefix(wanted.job_id)
    return StorageAccess(credentials=await access.storage.keys_for(prefix, f"{node_id}-{wanted.generation}"))


async def _ticket(
    transactions: Transactions, signer: StorageSigner, node_id: str, wanted: StorageRequest, now: datetime
) -> StorageTicket:
    text = secrets.token_urlsafe(32)
    until = now + timedelta(seconds=TICKET_S)
    ticket = Ticket(node_id=node_id, job_id=wanted.job_id, generation=wanted.generation, expires_at=until)
    async with transactions.begin() as tx:
        await check_holds(tx.held_runs, node_id, wanted.job_id, wanted.generation)
        await tx.storage_tickets.add(digest_token(text), ticket, now)
    return StorageTicket(uri=signer.uri_of(checkpoint_prefix(wanted.job_id)), ticket=text, expires_at=until)


async def sign(
    transactions: Transactions, signer: StorageSigner | None, sha256: str, wanted: SignRequest, now: datetime
) -> SignReply:
    """Signed requests for the bearer of a ticket.

    Raises:
        WrongToken: it is no ticket, or has expired.
        NotFound: its node does not run that generation any more: a leftover neither reads nor writes.
        Unavailable: the service has no keys now.
    """
    async with transactions.begin() as tx:
        ticket = await tx.storage_tickets.find(sha256)
        if signer is None or ticket is None or ticket.expires_at <= now:
            raise WrongToken(
                "this is no ticket to storage, or it has expired; agents renew those of their runs."
            )
        try:
            await check_holds(tx.held_runs, ticket.node_id, ticket.job_id, ticket.generation)
        except NotFound:
            raise NotFound(
                f"the node of this ticket does not run generation {ticket.generation} of {ticket.job_id} any more."
            ) from None
    urls = await signer.sign(checkpoint_prefix(ticket.job_id), wanted.calls, URL_S)
    return SignReply(urls=urls, expires_at=now + timedelta(seconds=URL_S - _SPARE_S))
