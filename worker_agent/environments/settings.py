"""Variables that reach uv: where its index is, and how it chooses among versions. Others could move what it writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_OF_PACKAGES: Final = re.compile(
    "UV_(INDEX(_.+)?|DEFAULT_INDEX|EXTRA_INDEX_URL|FIND_LINKS|INDEX_STRATEGY|OFFLINE|PRERELEASE|RESOLUTION|EXCLUDE_NEWER"
    "|NO_BUILD(_PACKAGE)?|NO_BINARY(_PACKAGE)?|TORCH_BACKEND)"
)
"""Variables that decide which packages uv installs."""
_OF_ACCESS: Final = re.compile(
    "UV_(INSECURE_HOST|HTTP_TIMEOUT|HTTP_RETRIES|SYSTEM_CERTS|NATIVE_TLS)|SSL_CERT_(FILE|DIR)"
    "|(HTTP|HTTPS|ALL|NO)_PROXY|(http|https|all|no)_proxy"
)
"""Variables for the way to the index, which do not change what an environment holds."""


def uv_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that uv may get."""
    return {
        name: value
        for name, value in env.items()
        if _OF_PACKAGES.fullmatch(name) or _OF_ACCESS.fullmatch(name)
    }


def determining(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that belong to the digest of an environment."""
    return {name: value for name, value in settings.items() if _OF_PACKAGES.fullmatch(name)}


def local_folders(settings: Mapping[str, str]) -> list[str]:
    """Return the folders of this host that `UV_FIND_LINKS` names."""
    named = re.split(r"[,\s]+", settings.get("UV_FIND_LINKS", ""))
    return [one.removeprefix("file://") for one in named if one.startswith(("/", "file:///"))]
