"""The proxy of a request, chosen from the environment."""

from __future__ import annotations

import pytest

from headway.errors import HeadwayError
from headway.proxies import Proxy, is_loopback, loopback_exemptions, naming, proxy_for

URL = "https://api.example.com:8443"
PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("localhost", True),
        ("api.localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0.0.0.0", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("127.example.com", False),
        ("localhost.example.com", False),
    ],
)
def test_loopback_is_this_host_only(host: str, is_here: bool) -> None:
    assert is_loopback(host) is is_here


@pytest.mark.parametrize(
    ("env", "variable"),
    [
        ({}, None),
        ({"https_proxy": PROXY}, "https_proxy"),
        ({"HTTPS_PROXY": PROXY}, "HTTPS_PROXY"),
        ({"http_proxy": PROXY}, None),
        ({"ALL_PROXY": "socks5://proxy:1080", "https_proxy": ""}, "ALL_PROXY"),
        ({"https_proxy": PROXY, "no_proxy": "localhost, .example.com"}, None),
        ({"https_proxy": PROXY, "NO_PROXY": "example.com"}, None),
        ({"https_proxy": PROXY, "NO_PROXY": "api.example.com:8443"}, None),
        ({"https_proxy": PROXY, "NO_PROXY": "*"}, None),
        ({"https_proxy": PROXY, "NO_PROXY": "ample.com,10.0.0.0/8"}, "https_proxy"),
    ],
)
def test_proxy_is_that_of_the_scheme_unless_the_host_is_exempt(
    env: dict[str, str], variable: str | None
) -> None:
    found = proxy_for(URL, env)
    assert (found.variable if found else None) == variable


@pytest.mark.parametrize(
    ("exempt", "url", "direct"),
    [
        ("host:443", "https://host/", True),
        ("host:80", "http://host", True),
        ("host:80", "https://host", False),
        (".ex.com:81", "http://a.ex.com:81", True),
        ("EX.com.", "http://a.ex.COM", True),
        ("10.0.0.0/8:80", "http://10.1.2.3", True),
        ("[fd00::1]:8000", "http://[fd00::1]:8000", True),
        ("[fd00::1]:8000", "http://[fd00::1]:8001", False),
        ("fd00::/8", "http://[fd00::1]:8000", True),
        ("fd00::1", "http://[fd00::1]", True),
        ("10.0.0.0/99", "http://10.0.0.1", False),
        ("*.ex.com", "http://notex.com", False),
    ],
)
def test_exemption_is_by_name_network_and_port_where_it_has_one(exempt: str, url: str, direct: bool) -> None:
    found = proxy_for(url, {"http_proxy": PROXY, "https_proxy": PROXY, "NO_PROXY": exempt})
    assert (found is None) is direct


def test_network_exempts_its_addresses() -> None:
    env = {"http_proxy": "proxy:3128", "no_proxy": "10.0.0.0/8"}
    assert proxy_for("http://10.1.2.3:8000", env) is None
    assert proxy_for("http://11.1.2.3:8000", env) == Proxy("http_proxy", PROXY)


@pytest.mark.parametrize("error", [ImportError("socksio"), ValueError("Unknown scheme")])
def test_unusable_proxy_is_named_without_its_password(error: Exception) -> None:
    with pytest.raises(HeadwayError) as raised, naming(Proxy("ALL_PROXY", "socks5://me:secret@proxy:1"), URL):
        raise error
    assert "ALL_PROXY=socks5://me" in raised.value.what
    assert "NO_PROXY=api.example.com" in raised.value.hint
    assert "secret" not in str(raised.value)


def test_libraries_get_loopback_exemptions_only_beside_a_proxy() -> None:
    assert loopback_exemptions({"PATH": "/bin", "http_proxy": ""}) == {}
    found = loopback_exemptions({"HTTPS_PROXY": PROXY, "no_proxy": "example.com"})
    assert set(found) == {"no_proxy", "NO_PROXY"}
    assert found["no_proxy"].split(",")[:2] == ["example.com", "localhost"]
