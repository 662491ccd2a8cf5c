"""Who may do what: nobody gains anything by making a token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.views.identity import EVERYWHERE, Role
from service.domain.identity.access import (
    Principal,
    allows,
    greater,
    lesser,
    may_manage_token,
    narrowed,
    own_token_bounds,
)
from service.domain.shared.errors import Forbidden, NotFound

PROJECTS = ("red", "blue", "green")
roles = st.sampled_from(list(Role))
scopes = st.sampled_from([EVERYWHERE, *PROJECTS])
rights = st.dictionaries(scopes, roles, max_size=4)


@st.composite
def bearers(draw: st.DrawFn) -> tuple[Principal, dict[str, Role]]:
    """Somebody with a token, and what they may without its bounds."""
    held = draw(rights)
    role, project = draw(st.none() | roles), draw(scopes)
    found = Principal(
        name="somebody",
        user_id="u1",
        token_id="t1",
        roles=narrowed(held, role, project),
        token_role=role,
        token_project=project,
    )
    return found, held


@given(one=roles, other=roles)
def test_of_two_roles_one_is_lesser_and_one_is_greater(one: Role, other: Role) -> None:
    assert {lesser(one, other), greater(one, other)} == {one, other}
    assert allows(greater(one, other), lesser(one, other))


@given(held=rights, role=st.none() | roles, project=scopes, asked=st.sampled_from(PROJECTS))
def test_a_narrowed_token_may_what_its_user_may_within_its_bounds(
    held: dict[str, Role], role: Role | None, project: str, asked: str
) -> None:
    user = Principal(name="u", roles=held)
    token = Principal(name="u", roles=narrowed(held, role, project))
    for wanted in Role:
        within = (project in {EVERYWHERE, asked}) and (role is None or allows(role, wanted))
        assert token.may(wanted, asked) == (user.may(wanted, asked) and within)


@given(
    bearer=bearers(),
    later=rights,
    role=st.none() | roles,
    project=scopes,
    asked=scopes,
)
def test_nobody_makes_a_token_that_may_more_than_the_one_that_they_show(
    bearer: tuple[Principal, dict[str, Role]],
    later: dict[str, Role],
    role: Role | None,
    project: str,
    asked: str,
) -> None:
    """Not now, and not when they have become something else."""
    maker, now = bearer
    try:
        new_role, new_project = own_token_bounds(maker, role, project)
    except NotFound:
        assert maker.role_in(project) is None
        return
    for user_may in (now, later):
        shown = Principal(name="m", roles=narrowed(user_may, maker.token_role, maker.token_project))
        made = Principal(name="m", roles=narrowed(user_may, new_role, new_project))
        for wanted in Role:
            assert shown.may(wanted, asked) or not made.may(wanted, asked)


@given(bearer=bearers(), role=roles, project=scopes, asked=scopes)
def test_nobody_makes_a_robot_that_may_more_than_they(
    bearer: tuple[Principal, dict[str, Role]], role: Role, project: str, asked: str
) -> None:
    maker, _ = bearer
    try:
        maker.require(Role.ADMIN, project)
    except (NotFound, Forbidden):
        return
    robot = Principal(name="robot", roles={project: role})
    for wanted in Role:
        assert maker.may(wanted, asked) or not robot.may(wanted, asked)


@given(bearer=bearers(), role=st.none() | roles, project=scopes, owner=st.sampled_from([None, "u1", "u2"]))
def test_tokens_are_managed_by_their_users_and_by_admins(
    bearer: tuple[Principal, dict[str, Role]], role: Role | None, project: str, owner: str | None
) -> None:
    caller, _ = bearer
    may = may_manage_token(caller, token_id="t2", user_id=owner, project=project)
    if caller.may(Role.ADMIN) or owner == "u1":
        assert may
    elif owner == "u2":
        assert not may
    else:
        assert may == caller.may(Role.ADMIN, project)


@given(held=rights)
def test_projects_are_those_that_one_may_see(held: dict[str, Role]) -> None:
    caller = Principal(name="c", roles=held)
    seen = caller.projects()
    assert seen == (None if EVERYWHERE in held else set(held))
    for project in PROJECTS:
        assert caller.may(Role.VIEWER, project) == (seen is None or project in seen)


def test_a_project_of_others_does_not_exist_and_one_of_ours_is_named() -> None:
    caller = Principal(name="alice", roles={"red": Role.VIEWER})
    with pytest.raises(NotFound, match="blue"):
        caller.require(Role.VIEWER, "blue")
    with pytest.raises(Forbidden, match="alice is viewer there; ask an admin"):
        caller.require(Role.USER, "red")
    with pytest.raises(Forbidden, match="everywhere"):
        caller.require(Role.VIEWER)
    caller.require(Role.VIEWER, "red")
