"""Rights of users and tokens: nobody gains any by making a token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
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


@settings(max_examples=60)
@given(one=roles, other=roles)
def test_of_two_roles_one_is_lesser_and_one_is_greater(one: Role, other: Role) -> None:
    assert {lesser(one, other), greater(one, other)} == {one, other}
    assert allows(greater(one, other), lesser(one, other))


@settings(max_examples=60)
@given(held=rights, role=st.none() | roles, project=scopes, asked=st.sampled_from(PROJECTS))
def test_a_narrowed_token_may_what_its_user_may_within_its_bounds(
    held: dict[str, Role], role: Role | None, project: str, asked: str
) -> None:
    user = Principal(name="u", roles=held)
    token = Principal(name="u", roles=narrowed(held, role, project))
    for wanted in Role:
        within = (project in {EVERYWHERE, asked}) and (role is None or allows(role, wanted))
        assert token.may(wanted, asked) == (user.may(wanted, asked) and within)


@settings(max_examples=60)
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


@settings(max_examples=60)
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


@settings(max_examples=60)
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


@settings(max_examples=60)
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


VIEWER, USER, OPERATOR, ADMIN = Role.VIEWER, Role.USER, Role.OPERATOR, Role.ADMIN


@pytest.mark.parametrize(
    ("held", "allowed"),
    [
        (None, []),
        (VIEWER, [VIEWER]),
        (USER, [VIEWER, USER]),
        (OPERATOR, [VIEWER, USER, OPERATOR]),
        (ADMIN, [VIEWER, USER, OPERATOR, ADMIN]),
    ],
)
def test_each_role_includes_those_below_it(held: Role | None, allowed: list[Role]) -> None:
    assert [role for role in (VIEWER, USER, OPERATOR, ADMIN) if allows(held, role)] == allowed


@pytest.mark.parametrize(
    ("one", "other", "result"),
    [(None, None, None), (None, USER, USER), (USER, None, USER), (USER, ADMIN, ADMIN), (USER, USER, USER)],
)
def test_the_greater_of_two_roles_of_which_one_may_be_missing(
    one: Role | None, other: Role | None, result: Role | None
) -> None:
    assert greater(one, other) is result
    assert greater(other, one) is result


@pytest.mark.parametrize(
    ("user_id", "token_id", "key"),
    [("7", None, "user 7"), ("7", "t1", "user 7"), (None, "7", "token 7")],
)
def test_users_and_robots_have_different_keys(user_id: str | None, token_id: str | None, key: str) -> None:
    assert Principal(name="x", user_id=user_id, token_id=token_id).key == key


@pytest.mark.parametrize(
    ("held", "asked", "project", "error"),
    [
        ({}, VIEWER, "red", NotFound),
        ({}, VIEWER, EVERYWHERE, Forbidden),
        ({"red": VIEWER}, VIEWER, "red", None),
        ({"red": VIEWER}, USER, "red", Forbidden),
        ({"red": ADMIN}, VIEWER, "blue", NotFound),
        ({"red": ADMIN}, VIEWER, EVERYWHERE, Forbidden),
        ({EVERYWHERE: VIEWER}, VIEWER, "blue", None),
        ({EVERYWHERE: VIEWER}, USER, "blue", Forbidden),
        ({EVERYWHERE: VIEWER, "red": ADMIN}, ADMIN, "red", None),
        ({EVERYWHERE: ADMIN, "red": VIEWER}, ADMIN, "red", None),
        ({EVERYWHERE: USER}, ADMIN, EVERYWHERE, Forbidden),
    ],
)
def test_what_roles_require(
    held: dict[str, Role], asked: Role, project: str, error: type[Exception] | None
) -> None:
    """A project of others does not exist for a caller."""
    caller = Principal(name="c", roles=held)
    assert caller.may(asked, project) is (error is None)
    if error is None:
        caller.require(asked, project)
        return
    with pytest.raises(error):
        caller.require(asked, project)


@pytest.mark.parametrize(
    ("held", "role", "projects"),
    [
        ({}, VIEWER, set()),
        ({"red": VIEWER, "blue": USER}, VIEWER, {"red", "blue"}),
        ({"red": VIEWER, "blue": USER}, USER, {"blue"}),
        ({EVERYWHERE: VIEWER, "blue": USER}, VIEWER, None),
        ({EVERYWHERE: VIEWER, "blue": USER}, USER, {"blue"}),
        ({EVERYWHERE: ADMIN}, OPERATOR, None),
    ],
)
def test_the_projects_with_a_role(held: dict[str, Role], role: Role, projects: set[str] | None) -> None:
    assert Principal(name="c", roles=held).projects(role) == projects


@pytest.mark.parametrize(
    ("role", "project", "kept"),
    [
        (None, EVERYWHERE, {EVERYWHERE: USER, "red": ADMIN}),
        (VIEWER, EVERYWHERE, {EVERYWHERE: VIEWER, "red": VIEWER}),
        (OPERATOR, EVERYWHERE, {EVERYWHERE: USER, "red": OPERATOR}),
        (None, "red", {"red": ADMIN}),
        (None, "blue", {"blue": USER}),
        (VIEWER, "blue", {"blue": VIEWER}),
    ],
)
def test_the_part_of_a_users_roles_that_a_token_grants(
    role: Role | None, project: str, kept: dict[str, Role]
) -> None:
    assert narrowed({EVERYWHERE: USER, "red": ADMIN}, role, project) == kept
    assert narrowed({}, role, project) == {}


@pytest.mark.parametrize(
    ("shown", "asked", "made"),
    [
        ((None, EVERYWHERE), (None, EVERYWHERE), (None, EVERYWHERE)),
        ((None, EVERYWHERE), (VIEWER, "red"), (VIEWER, "red")),
        ((USER, EVERYWHERE), (None, EVERYWHERE), (USER, EVERYWHERE)),
        ((USER, EVERYWHERE), (ADMIN, "red"), (USER, "red")),
        ((USER, EVERYWHERE), (VIEWER, "red"), (VIEWER, "red")),
        ((None, "red"), (ADMIN, EVERYWHERE), (ADMIN, "red")),
        ((VIEWER, "red"), (None, EVERYWHERE), (VIEWER, "red")),
    ],
)
def test_a_token_of_a_token_has_its_bounds(
    shown: tuple[Role | None, str], asked: tuple[Role | None, str], made: tuple[Role | None, str]
) -> None:
    maker = Principal(
        name="m", roles={"red": VIEWER}, user_id="u1", token_role=shown[0], token_project=shown[1]
    )
    assert own_token_bounds(maker, *asked) == made


@pytest.mark.parametrize(
    ("roles_", "token_id", "user_id", "project", "may"),
    [
        ({}, "t1", None, "red", True),
        ({}, "t2", "u1", "red", True),
        ({}, "t2", "u2", "red", False),
        ({"red": ADMIN}, "t2", "u2", "red", False),
        ({"red": ADMIN}, "t2", None, "red", True),
        ({"red": ADMIN}, "t2", None, "blue", False),
        ({"red": OPERATOR}, "t2", None, "red", False),
        ({EVERYWHERE: ADMIN}, "t2", "u2", "blue", True),
    ],
    ids=["shown", "own", "another's", "a user's", "robot", "robot elsewhere", "operator", "cluster admin"],
)
def test_whose_tokens_one_manages(
    roles_: dict[str, Role], token_id: str, user_id: str | None, project: str, may: bool
) -> None:
    caller = Principal(name="c", user_id="u1", token_id="t1", roles=roles_)
    assert may_manage_token(caller, token_id=token_id, user_id=user_id, project=project) is may


def test_a_robot_does_not_manage_other_robots() -> None:
    robot = Principal(name="r", token_id="t1", roles={"red": USER})
    assert may_manage_token(robot, token_id="t1", user_id=None, project="red")
    assert not may_manage_token(robot, token_id="t2", user_id=None, project="red")
