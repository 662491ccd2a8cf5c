"""Baseline for submits: a FastAPI handler that validates a small body and does one INSERT."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy import Column, MetaData, Table, Text, insert
from sqlalchemy.ext.asyncio import create_async_engine

engine = create_async_engine(os.environ["BARE_DATABASE_URL"], pool_size=10, max_overflow=0)
items = Table("items", MetaData(), Column("id", Text, primary_key=True), Column("name", Text))


class Item(BaseModel):
    name: str
    run: str


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(items.metadata.create_all)
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/items", status_code=201)
async def create(item: Item) -> dict[str, str]:
    item_id = secrets.token_hex(8)
    async with engine.begin() as connection:
        await connection.execute(insert(items).values(id=item_id, name=item.name))
    return {"id": item_id}


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ["BARE_PORT"]), log_config=None, access_log=False)
