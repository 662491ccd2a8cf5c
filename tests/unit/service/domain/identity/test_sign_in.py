"""People who may sign in, and the pages to which they return."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.contract.views.identity import EVERYWHERE, Role
from service.domain.identity.sign_in import Account, AdmissionRules, Claims, admit, safe_return
from service.domain.shared.errors import Forbidden

HERE = "https://headway.example"
_pieces = st.sampled_from(
    ["/", "//", "\\", "evil.example", ":", "http:", "@", "?", "#", "\t", "\n", " ", "..", "é", "jobs"]
)


@settings(max_examples=60)
@given(st.lists(_pieces, max_size=8).map("".join) | st.text(max_size=30))
@example("//evil.example")
@example("/\\evil.example")
@example("/\t/evil.example")
@example("https://evil.example")
@example("javascript:alert(1)")
def test_a_browser_stays_here(path: str) -> None:
    sent = safe_return(path)
    # Browsers first remove tabs and line ends from a URL, and read a backslash as a slash.
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


@settings(max_examples=60)
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


BOUND = Account(id="u1", name="ada", issuer="i", subject="s")
ADDED = Account(id="u1", name="ada")
OPEN = AdmissionRules(default_role=Role.USER)
CLOSED = AdmissionRules()


@pytest.mark.parametrize(
    ("known", "rules", "roles"),
    [
        (None, OPEN, {"default": Role.USER}),
        (None, AdmissionRules(default_role=Role.VIEWER, default_project="team"), {"team": Role.VIEWER}),
        (None, AdmissionRules(admins=frozenset({"ada"})), {EVERYWHERE: Role.ADMIN}),
        (
            None,
            AdmissionRules(admins=frozenset({"ada"}), default_role=Role.USER),
            {EVERYWHERE: Role.ADMIN, "default": Role.USER},
        ),
        (ADDED, CLOSED, {}),
        (ADDED, OPEN, {"default": Role.USER}),
    ],
    ids=["anybody", "project", "admin", "both", "added", "added and anybody"],
)
def test_the_roles_at_the_first_sign_in(
    known: Account | None, rules: AdmissionRules, roles: dict[str, Role]
) -> None:
    admission = admit(CLAIMS, known, rules)
    assert (admission.name, admission.binds, admission.roles) == ("ada", True, roles)


@pytest.mark.parametrize("rules", [OPEN, CLOSED, AdmissionRules(admins=frozenset({"ada"}))])
def test_a_later_sign_in_changes_no_roles(rules: AdmissionRules) -> None:
    admission = admit(CLAIMS, BOUND, rules)
    assert (admission.binds, admission.roles) == (False, {})


def test_a_person_keeps_the_name_of_the_first_sign_in() -> None:
    renamed = Claims(issuer="i", subject="s", name="ada.married")
    nameless = Claims(issuer="i", subject="s", name=None)
    assert admit(renamed, BOUND, CLOSED).name == "ada"
    assert admit(nameless, BOUND, CLOSED).name == "ada"


@pytest.mark.parametrize(
    ("claims", "known", "rules", "says"),
    [
        (CLAIMS, None, CLOSED, "there is no user ada"),
        (CLAIMS, Account(id="u1", name="ada", disabled=True), OPEN, "disabled"),
        (CLAIMS, Account(id="u1", name="ada", issuer="i", subject="s", disabled=True), OPEN, "disabled"),
        (CLAIMS, Account(id="u1", name="ada", issuer="i", subject="t"), OPEN, "another account"),
        (CLAIMS, Account(id="u1", name="ada", issuer="j", subject="s"), OPEN, "another account"),
        (Claims(issuer="i", subject="s", name=None), None, OPEN, "no verified name"),
        (Claims(issuer="i", subject="s", name=None), ADDED, OPEN, "no verified name"),
    ],
    ids=["unknown", "disabled", "disabled and bound", "subject", "issuer", "no name", "no name, added"],
)
def test_who_may_not_sign_in(claims: Claims, known: Account | None, rules: AdmissionRules, says: str) -> None:
    with pytest.raises(Forbidden, match=says):
        admit(claims, known, rules)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/jobs", True),
        ("/" + "a" * 1999, True),
        ("/auth", True),
        ("/auth/", False),
        ("/authors/x", True),
        ("//host", False),
        ("/\\host", False),
        ("/a\\b", False),
        ("/a b", False),
        ("/a\tb", False),
        ("/a\x7f", False),
        ("/ä", False),
        ("/~a", True),
        ("/!", True),
        ("/jobs//x", True),
    ],
)
def test_which_paths_are_returned_to(path: str, *, kept: bool) -> None:
    assert safe_return(path) == (path if kept else "/")
