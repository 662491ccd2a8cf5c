"""Which keys for checkpoints a service gives to agents, by its settings."""

from __future__ import annotations

from collections.abc import Mapping

from service.settings import Settings, SettingsError
from service.usecases.node_ports import StorageKeys


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
    if not settings.storage_url.startswith("s3://"):
        raise SettingsError("HEADWAY_STORAGE_ROLE is for an s3:// storage; leave it out for any other.")
    # Only who has set a role needs boto3, and only they wait for its import.
    try:
        import boto3  # noqa: PLC0415

        from service.adapters.sts import StsKeys  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SettingsError(f"HEADWAY_STORAGE_ROLE needs {error.name}: pip install 'headway[ec2]'") from error
    endpoint_url = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or env.get("AWS_ENDPOINT")
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    client = boto3.client(
        "sts", region_name=region, endpoint_url=env.get("AWS_ENDPOINT_URL_STS") or endpoint_url
    )
    return StsKeys(
        settings.storage_url, settings.storage_role, client, endpoint_url=endpoint_url or None, region=region
    )
