"""`/api/v1/bundles`: working folders, addressed by digest."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from headway.contract.spec import DIGEST_PATTERN
from headway.contract.views.identity import Role
from headway.contract.views.jobs import BundleView
from service.api.http.access import BundleReader, Caller, needs
from service.api.http.context import ApiContext, Context
from service.api.http.problems import PROBLEM
from service.api.http.render import as_json
from service.domain.identity.access import Principal
from service.domain.shared.errors import NotFound, TooLarge
from service.usecases.ports.storage import BundleRecord
from service.usecases.storage.bundles import bundle_key, store_bundle

router = APIRouter(prefix="/api/v1/bundles", tags=["bundles"])
Digest = Annotated[str, Path(pattern=DIGEST_PATTERN)]


@router.post(
    "",
    operation_id="upload_bundle",
    status_code=201,
    response_model=BundleView,
    responses={413: PROBLEM, 422: PROBLEM},
    **needs(Role.USER),
)
async def upload_bundle(request: Request, context: Context, caller: Caller) -> Response:
    """Upload a folder as tar.gz (the raw body). Identical bytes are stored once."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > context.max_bundle_bytes:
            raise TooLarge(
                f"the bundle is larger than {context.max_bundle_bytes} bytes; exclude data and outputs with "
                ".headwayignore"
            )
    bundle, new = await store_bundle(
        context.transactions,
        context.storage,
        bytes(data),
        uploader=caller,
        max_bytes=context.max_bundle_bytes,
        now=context.now(),
    )
    view = BundleView(digest=bundle.digest, size_bytes=bundle.size_bytes, files=len(bundle.files))
    return as_json(view, 201 if new else 200, {"Location": f"/api/v1/bundles/{bundle.digest}"})


@router.head("/{digest}", operation_id="has_bundle")
async def has_bundle(context: Context, digest: Digest, reader: BundleReader) -> Response:
    """Check that a bundle exists that the caller may read."""
    bundle = await _find(context, digest, reader)
    return Response(headers={"X-Bundle-Bytes": str(bundle.size_bytes)})


@router.get("/{digest}", operation_id="download_bundle")
async def download_bundle(context: Context, digest: Digest, reader: BundleReader) -> Response:
    """Return the bytes of a bundle.

    It is readable for its uploaders, for users who see a job that starts from it, and for nodes that run one.
    """
    bundle = await _find(context, digest, reader)
    return Response(await context.storage.get(bundle_key(bundle.digest)), media_type="application/gzip")


async def _find(context: ApiContext, digest: str, reader: Principal | None) -> BundleRecord:
    async with context.transactions.begin() as tx:
        bundle = await tx.bundles.get(digest, reader)
    if bundle is None:
        raise NotFound(f"there is no bundle {digest} that you may read; upload it with POST /api/v1/bundles.")
    return bundle
