"""Access of ranks to their checkpoints, by the settings: keys of a role, or requests signed by the service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from service.settings import Settings, SettingsError
from service.usecases.ports.credentials import StorageKeys, StorageSigner


class HostKeys(StorageKeys):
    """Access without keys from the service.

    A folder needs no keys. For a store without a role, the hosts have their own keys.
    """

    async def keys_for(self, prefix: str, session: str) -> None:
        """Return no keys for any prefix."""


def storage_keys(settings: Settings, env: Mapping[str, str]) -> StorageKeys:
    """Return the source of storage keys that the settings name.

    Raises:
        SettingsError: a role is set but the storage has no roles, or boto3 is missing.
    """
    if not settings.storage_role:
        return HostKeys()
    _check_s3(settings, "HEADWAY_STORAGE_ROLE")
    # boto3 takes long to import, and only deployments with a role need it.
    with _needed_by("HEADWAY_STORAGE_ROLE"):
        import boto3  # noqa: PLC0415

        from service.adapters.s3_access import StsKeys  # noqa: PLC0415
    endpoint_url, region = _place(env)
    client = boto3.client(
        "sts", region_name=region, endpoint_url=env.get("AWS_ENDPOINT_URL_STS") or endpoint_url
    )
    return StsKeys(
        settings.storage_url, settings.storage_role, client, endpoint_url=endpoint_url, region=region
    )


def storage_signer(settings: Settings, env: Mapping[str, str]) -> StorageSigner | None:
    """Return the signer of ranks' requests, or None if the settings do not ask for one.

    Raises:
        SettingsError: the storage is not an S3 store, a role is set too, or boto3 or a key is missing.
    """
    if not settings.storage_signed:
        return None
    _check_s3(settings, "HEADWAY_STORAGE_SIGNED")
    if settings.storage_role:
        raise SettingsError("HEADWAY_STORAGE_SIGNED and HEADWAY_STORAGE_ROLE exclude each other: set one.")
    with _needed_by("HEADWAY_STORAGE_SIGNED"):
        import boto3  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415

        from service.adapters.s3_access import S3Signer  # noqa: PLC0415
    session = boto3.Session()
    if session.get_credentials() is None:
        raise SettingsError(
            "HEADWAY_STORAGE_SIGNED needs the service's own keys to the storage: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or give its machine a role."
        )
    endpoint_url, region = _place(env)
    config = Config(
        signature_version="s3v4",
        # A self-hosted store usually has the bucket in the path, and no DNS name for each bucket.
        s3={"addressing_style": "path" if endpoint_url else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    client = session.client("s3", region_name=region or "us-east-1", endpoint_url=endpoint_url, config=config)
    return S3Signer(settings.storage_url, client)


@contextmanager
def _needed_by(setting: str) -> Iterator[None]:
    """Turn a missing package that only this setting needs into a SettingsError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingsError(f"{setting} needs {error.name}: pip install 'headway[ec2]'") from error


def _check_s3(settings: Settings, name: str) -> None:
    if not settings.storage_url.startswith("s3://"):
        raise SettingsError(f"{name} is for an s3:// storage; leave it out for any other.")


def _place(env: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return endpoint and region of the store, each None for AWS's default."""
    endpoint_url = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or env.get("AWS_ENDPOINT")
    return endpoint_url or None, env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or None
