"""Requests about users, ACLs and quotas, to any node that has the group `__cluster`.

`group` is `__cluster` in all of them. Lists are answered in pages, of one `version` of all: a
client that finds another one in a later page begins again. What has a word has it as text, such as
`describe-configs`, so that a node of an earlier version can name what it does not know.
"""

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from quorumlog.model.bounds import Code, Count, Label, Name, Number, Text
from quorumlog.model.messages.base import Request, Response

CHANGES_MAX: Final = 100
"""Changes in one request."""
PAGE_BYTES_MAX: Final = 64 * 1024
"""Of what is listed in one answer, beyond its first element."""

Word: TypeAlias = Annotated[str, Meta(max_length=64)]
Principal: TypeAlias = Annotated[str, Meta(max_length=256)]
SaltBytes: TypeAlias = Annotated[bytes, Meta(max_length=256)]
KeyBytes: TypeAlias = Annotated[bytes, Meta(max_length=64)]


class SecurityRequest(Request, frozen=True, kw_only=True):
    """Base of these requests."""


class ListRequest(SecurityRequest, frozen=True, kw_only=True):
    """Base of those that are answered by pages: `skipped` elements are known already."""

    skipped: Count = 0


class ListResponse(Response, frozen=True, kw_only=True):
    """Base of pages; `more`: there are others after this one."""

    version: Number = 0
    more: bool = False


class AlteredResponse(Response, frozen=True, kw_only=True):
    """What became of each change, in their order: a response code, and why."""

    outcomes: list[tuple[Code, str]] = []


# -- users ----------------------------------------------------------------------------------------


class UsersRequest(ListRequest, frozen=True, kw_only=True):
    """Which users are there?"""


class UserFields(msgspec.Struct, frozen=True, array_like=True):
    """A user; `iterations` by mechanism. What passwords are checked by is never told."""

    name: Name
    iterations: dict[Word, Count]


class UsersResponse(ListResponse, frozen=True, kw_only=True):
    """Users, in order of their names."""

    users: list[UserFields] = []


class VerifierFields(msgspec.Struct, frozen=True, array_like=True):
    """By what a password is checked."""

    salt: SaltBytes
    stored_key: KeyBytes
    server_key: KeyBytes
    iterations: Count


class UserAlteration(msgspec.Struct, frozen=True, array_like=True):
    """Passwords of a user, by mechanism; None: there shall be none for this one.

    `exists`: only if there is such a user, or, if it is False, only if there is none. `replaces`:
    there is none for other mechanisms any more; without any, there is no such user.
    """

    name: Label
    verifiers: Annotated[dict[Word, VerifierFields | None], Meta(max_length=8)]
    exists: bool | None = None
    replaces: bool = False


class AlterUsersRequest(SecurityRequest, frozen=True, kw_only=True):
    """Change users."""

    changes: Annotated[list[UserAlteration], Meta(max_length=CHANGES_MAX)]


# -- ACLs -----------------------------------------------------------------------------------------


class AclFields(msgspec.Struct, frozen=True, array_like=True):
    """An ACL, or a filter of ACLs: in that, an empty text stands for any, and so does the word."""

    principal: Principal = ""
    permission: Word = "any"
    operation: Word = "any"
    resource_type: Word = "any"
    name: Label = ""
    pattern: Word = "any"
    host: Word = ""


class AclsRequest(ListRequest, frozen=True, kw_only=True):
    """Which ACLs does a filter mean?"""

    filter: AclFields = AclFields()


class AclsResponse(ListResponse, frozen=True, kw_only=True):
    """ACLs, those of each principal together."""

    acls: list[AclFields] = []


class AlterAclsRequest(SecurityRequest, frozen=True, kw_only=True):
    """Add and remove ACLs; the outcomes are those of the added ones first."""

    added: Annotated[list[AclFields], Meta(max_length=CHANGES_MAX)] = []
    removed: Annotated[list[AclFields], Meta(max_length=CHANGES_MAX)] = []


class CheckAclRequest(SecurityRequest, frozen=True, kw_only=True):
    """May a principal do this? `host` is an address that it asks from; empty: not known."""

    principal: Principal
    operation: Word
    resource_type: Word
    name: Label
    host: Word = ""


class CheckAclResponse(Response, frozen=True, kw_only=True):
    """Whether it may, the ACL that decides (None: none does), and both in words."""

    is_allowed: bool = False
    acl: AclFields | None = None
    reason: Text = ""


# -- what stands open -----------------------------------------------------------------------------


class CheckSecurityRequest(SecurityRequest, frozen=True, kw_only=True):
    """What stands open at this node, and who has come plain or anonymous?"""


class ClientFields(msgspec.Struct, frozen=True, array_like=True):
    """Connections of one client. `port`: native or kafka; `name`: what it calls itself;
    `ago_s`: seconds since the last one was there, 0: one is."""

    principal: Principal
    host: Word
    port: Word
    name: Label
    is_plain: bool
    ago_s: Count


class CheckSecurityResponse(Response, frozen=True, kw_only=True):
    """`findings`: a word for each thing that is open, and a sentence. `clients`: those that were
    seen last come first, and `left_out` are not told, as an answer has its limit."""

    node_id: Name = ""
    findings: list[tuple[Word, Text]] = []
    clients: list[ClientFields] = []
    left_out: Count = 0


# -- quotas ---------------------------------------------------------------------------------------

EntityFields: TypeAlias = Annotated[list[tuple[Word, Label | None]], Meta(max_length=4)]
"""Type and name of each part of whom a quota is for; None: all that have no quota of their own."""


class QuotasRequest(ListRequest, frozen=True, kw_only=True):
    """Which quotas are there?"""


class QuotasResponse(ListResponse, frozen=True, kw_only=True):
    """Whom quotas are for, and their values by their keys."""

    quotas: list[tuple[EntityFields, dict[str, float]]] = []


class QuotaAlteration(msgspec.Struct, frozen=True, array_like=True):
    """A quota; without a value there is none any more."""

    entity: EntityFields
    key: Word
    value: float | None = None


class AlterQuotasRequest(SecurityRequest, frozen=True, kw_only=True):
    """Change quotas."""

    changes: Annotated[list[QuotaAlteration], Meta(max_length=CHANGES_MAX)]
