"""Who is let in, and where they are sent then."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.contract.views.identity import EVERYWHERE, Role
from service.domain.identity.sign_in import Account, AdmissionRules, Claims, admit, safe_return
from service.domain.shared.errors import Forbidden

HERE = "https://headway.example"
_pieces = st.sampled_from(
    ["/", "//", "\\", "evil.example", ":", "http:", "@", "?", "#", "\t", "\n", " ", "..", "é", "jobs"]
)


@given(st.lists(_pieces, max_size=8).map("".join) | st.text(max_size=30))
@example("//evil.example")
@example("/\\evil.example")
@example("/\t/evil.example")
@example("https://evil.example")
@example("javascript:alert(1)")
def test_a_browser_stays_here(path: str) -> None:
    sent = safe_return(path)
    # What browsers do before they look at a URL: tabs and line ends go, and a backslash is a slash.
    seen = "".join(mark for mark in sent if mark not in "\t\r\n").strip().replace("\\", "/")
    parts = urlsplit(urljoin(HERE, seen))
    assert (parts.scheme, parts.netloc) == ("https", "headway.example")


@pytest.mark.parametrize("path", ["/", "/jobs/a?x=1&y=%20#log", "/projects/a/b"])
def test_paths_of_ours_are_kept(path: str) -> None:
    assert safe_return(path) == path


@pytest.mark.parametrize("path", [None, "", "jobs", "/auth/logout", "/" + "a" * 2000])
def test_anything_else_is_the_start_page(path: str | None) -> None:
    assert safe_return(path) == "/"


CLAIMS = Claims(issuer="i", subject="s", name="ada")
ROLES = st.none() | st.sampled_from(Role)


@given(
    known=st.none()
    | st.builds(
        Account,
        id=st.just("u1"),
        name=st.sampled_from(["ada", "bob"]),
        issuer=st.sampled_from([None, "i", "j"]),
        subject=st.sampled_from([None, "s", "t"]),
        disabled=st.booleans(),
    ),
    rules=st.builds(
        AdmissionRules,
        admins=st.frozensets(st.sampled_from(["ada", "bob"])),
        default_role=ROLES,
    ),
    named=st.booleans(),
)
def test_nobody_becomes_somebody_else(known: Account | None, rules: AdmissionRules, named: bool) -> None:
    claims = CLAIMS if named else Claims(issuer="i", subject="s", name=None)
    bound = known is not None and known.subject is not None
    own = known is not None and (known.issuer, known.subject) == ("i", "s")
    try:
        admission = admit(claims, known, rules)
    except Forbidden:
        refused_for = (
            (known is not None and known.disabled)
            or (not named and not own)
            or (bound and not own)
            or (known is None and "ada" not in rules.admins and rules.default_role is None)
        )
        assert refused_for
        return
    assert not (known is not None and known.disabled)
    assert own or not bound
    if own:
        assert known is not None
        assert (admission.name, admission.binds, admission.roles) == (known.name, False, {})
    else:
        assert (admission.name, admission.binds) == ("ada", True)
        assert (admission.roles.get(EVERYWHERE) is Role.ADMIN) == ("ada" in rules.admins)
        assert admission.roles.get("default") == rules.default_role
