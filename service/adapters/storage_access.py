"""How ranks reach their checkpoints, by the service's settings: keys from a role, or requests that the service signs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from service.settings import Settings, SettingsError
from service.usecases.node_ports import StorageKeys, StorageSigner


class HostKeys:
    """Implements `usecases.node_ports.StorageKeys` where nothing is narrowed down: a folder needs no keys, and for a store
    without a role the hosts have their own.
    """

    async def keys_for(self, prefix: str, session: str) -> None:
        """None."""


def storage_keys(settings: Settings, env: Mapping[str, str]) -> StorageKeys:
    """What makes keys.

    Raises:
        SettingsError: there is a role, and the storage is none that knows roles, or boto3 is missing.
    """
    if not settings.storage_role:
        return HostKeys()
    _check_s3(settings, "HEADWAY_STORAGE_ROLE")
    # Only who has set a role needs boto3, and only they wait for its import.
    with _needed_by("HEADWAY_STORAGE_ROLE"):
        import boto3  # noqa: PLC0415

        from service.adapters.sts import StsKeys  # noqa: PLC0415
    endpoint_url, region = _place(env)
    client = boto3.client(
        "sts", region_name=region, endpoint_url=env.get("AWS_ENDPOINT_URL_STS") or endpoint_url
    )
    return StsKeys(
        settings.storage_url, settings.storage_role, client, endpoint_url=endpoint_url, region=region
    )


def storage_signer(settings: Settings, env: Mapping[str, str]) -> StorageSigner | None:
    """What signs the requests of ranks; None where it is not asked for.

    Raises:
        SettingsError: it is asked for, and the storage is no S3 store, a role is set too, or boto3 or a key is missing.
    """
    if not settings.storage_signed:
        return None
    _check_s3(settings, "HEADWAY_STORAGE_SIGNED")
    if settings.storage_role:
        raise SettingsError(
            "HEADWAY_STORAGE_SIGNED and HEADWAY_STORAGE_ROLE are two ways to the same end: set one."
        )
    with _needed_by("HEADWAY_STORAGE_SIGNED"):
        import boto3  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415

        from service.adapters.signing import S3Signer  # noqa: PLC0415
    session = boto3.Session()
    if session.get_credentials() is None:
        raise SettingsError(
            "HEADWAY_STORAGE_SIGNED needs the service's own keys to the storage: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or give its machine a role."
        )
    endpoint_url, region = _place(env)
    config = Config(
        signature_version="s3v4",
        # A store of one's own has buckets in the path as a rule, and no name in the DNS for each.
        s3={"addressing_style": "path" if endpoint_url else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    client = session.client("s3", region_name=region or "us-east-1", endpoint_url=endpoint_url, config=config)
    return S3Signer(settings.storage_url, client)


@contextmanager
def _needed_by(setting: str) -> Iterator[None]:
    """Around imports of packages that only this setting needs. Raises SettingsError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingsError(f"{setting} needs {error.name}: pip install 'headway[ec2]'") from error


def _check_s3(settings: Settings, name: str) -> None:
    if not settings.storage_url.startswith("s3://"):
        raise SettingsError(f"{name} is for an s3:// storage; leave it out for any other.")


def _place(env: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Endpoint and region of the store; None for AWS's own."""
    endpoint_url = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or env.get("AWS_ENDPOINT")
    return endpoint_url or None, env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or None
