"""The page of device kinds with free slots."""

from service.usecases.nodes.capacity import free_kinds

from service.api.http.context import ApiContext
from service.console.html.fragments import Content, Fragment
from service.console.pages.page import Key, LivePage, Memory


async def read(context: ApiContext, key: Key, memory: Memory) -> list[Content]:
    """Return the fragments of the page."""
    async with context.transactions.begin() as tx:
        kinds = await free_kinds(tx, context.usd_per_slot_h)
    return [Fragment("kinds", "capacity.html/kinds", kinds)]


PAGE = LivePage(name="capacity", label="Capacity", read=read)
