"""Names of users, and principals: who asks, as a text such as `User:alice` (Kafka's form)."""

import unicodedata
from collections.abc import Container
from typing import Final

from quorumlog.model.bounds import NAME_LENGTH_MAX
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.security_config import NOT_LOGGED_IN

EVERYBODY: Final = "*"
"""Instead of the name of a user in an ACL: any."""
USER: Final = "User:"
"""What the principal of a user begins with."""
ANY_USER: Final = USER + EVERYBODY
"""The principal of an ACL that is about all users, also those who have not logged in."""


def user_name(given: str) -> str:
    """Return the name of a user in the form in which it is kept and compared (NFKC).

    It has 1 to 128 characters, none of them a control character; `*` is reserved for everybody.
    Raises `UnexpectedArgumentError`.
    """
    name = unicodedata.normalize("NFKC", given)
    if not 0 < len(name) <= NAME_LENGTH_MAX:
        text = f"the name of a user has 1 to {NAME_LENGTH_MAX} characters, not {len(name)}"
        raise UnexpectedArgumentError(text)
    if any(unicodedata.category(one) in _REFUSED for one in name):
        raise UnexpectedArgumentError(
            f"the name of a user has no control characters, as {name!a} has"
        )
    if name == EVERYBODY:
        raise UnexpectedArgumentError("no user is called *, which stands for everybody in ACLs")
    return name


def check_password_counts(user: str, super_users: Container[str]) -> None:
    """Raise `UnexpectedArgumentError` if a user could never log in with a password.

    `super_users`: principals that a node's configuration names.
    """
    if USER + user in super_users:
        raise UnexpectedArgumentError(
            f"User:{user} is a super user (superUsers in the nodes' configuration), who comes by a "
            "certificate and cannot log in with a password: give the password to a user of another "
            "name, or take the name out of superUsers first"
        )


def is_reserved(name: str) -> bool:
    """Whether nobody may be called so: it stands for others, or nothing of it can be seen."""
    return name in (EVERYBODY, NOT_LOGGED_IN) or is_blank(name)


def is_blank(name: str) -> bool:
    """Whether nothing of a name can be seen."""
    return all(unicodedata.category(one)[0] in _UNSEEN for one in name)


_UNSEEN: Final = "ZC"
"""First letters of categories of Unicode: spaces, and what has no shape."""


def new_user_name(given: str) -> str:
    """Return the name of a user who gets a password, in the form in which it is kept.

    Raises `UnexpectedArgumentError` if no user may have it, as `user_name`, and if it is reserved.
    """
    name = user_name(given)
    if is_reserved(name):
        raise UnexpectedArgumentError(
            f"no user may be called {name!a}: the name is blank, or stands for whoever has not "
            "logged in"
        )
    return name


_REFUSED: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Categories of Unicode: control characters, halves of surrogate pairs, ends of lines."""


def principal_of(user: str) -> str:
    """Return the principal of a user. Raises `UnexpectedArgumentError`."""
    return USER + user_name(user)


def principal(given: str) -> str:
    """Return a principal as ACLs have it: that of a user, or `User:*`.

    Raises `UnexpectedArgumentError`.
    """
    kind, colon, name = given.partition(":")
    if kind + colon != USER:
        raise UnexpectedArgumentError(
            f"a principal is a text such as User:alice or {ANY_USER}, not {given!a}"
        )
    return given if given == ANY_USER else principal_of(name)
