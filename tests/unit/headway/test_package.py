"""Names of the package itself."""

from __future__ import annotations

from importlib.metadata import version

import headway


def test_the_version_is_that_of_the_installed_package() -> None:
    assert headway.__version__ == version("headway")
    assert "__version__" in dir(headway)
