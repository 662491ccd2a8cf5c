"""`/api/v1/bundles`: working folders, addressed by digest."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response

from headway.contract.identity import Role
from headway.contract.jobs import BundleView
from headway.contract.spec import DIGEST_PATTERN
from service.api.access import needs, require_bundle_reader
from service.api.context import ApiContext, Context
from service.api.render import as_json
from service.domain.errors import NotFound, TooLarge
from service.usecases.bundles import bundle_key, store_bundle
from service.usecases.records import BundleRecord

router = APIRouter(prefix="/api/v1/bundles", tags=["bundles"])
Digest = Annotated[str, Path(pattern=DIGEST_PATTERN)]


@router.post("", operation_id="upload_bundle", status_code=201, response_model=BundleView, **needs(Role.USER))
async def upload_bundle(request: Request, context: Context) -> Response:
    """Upload a folder as tar.gz (the raw body). The same bytes again are not stored again."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > context.max_bundle_bytes:
            raise TooLarge(
                f"the bundle is over {context.max_bundle_bytes} bytes; exclude data and outputs with "
                ".headwayignore"
            )
    bundle, new = await store_bundle(
        context.transactions,
        context.storage,
        bytes(data),
        max_bytes=context.max_bundle_bytes,
        now=context.now(),
    )
    view = BundleView(digest=bundle.digest, size_bytes=bundle.size_bytes, files=len(bundle.files))
    return as_json(view, 201 if new else 200, {"Location": f"/api/v1/bundles/{bundle.digest}"})


@router.head("/{digest}", operation_id="has_bundle", dependencies=[Depends(require_bundle_reader)])
async def has_bundle(context: Context, digest: Digest) -> Response:
    """Whether a bundle was uploaded."""
    bundle = await _find(context, digest)
    return Response(headers={"X-Bundle-Bytes": str(bundle.size_bytes)})


@router.get("/{digest}", operation_id="download_bundle", dependencies=[Depends(require_bundle_reader)])
async def download_bundle(context: Context, digest: Digest) -> Response:
    """The bytes of a bundle."""
    bundle = await _find(context, digest)
    return Response(await context.storage.get(bundle_key(bundle.digest)), media_type="application/gzip")


async def _find(context: ApiContext, digest: str) -> BundleRecord:
    async with context.transactions.begin() as tx:
        bundle = await tx.bundles.get(digest)
    if bundle is None:
        raise NotFound(f"no bundle {digest} was uploaded; POST it to /api/v1/bundles.")
    return bundle
