"""ACLs as they are in messages of clients: everything as text."""

from quorumlog.auth.acls import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    checked_acl,
    value_of,
    word_of,
)
from quorumlog.model.messages.security import AclFields


def fields_of(acl: Acl) -> AclFields:
    """Return an ACL as messages have it."""
    return AclFields(
        acl.principal,
        word_of(acl.permission),
        word_of(acl.operation),
        word_of(acl.resource_type),
        acl.name,
        word_of(acl.pattern),
        acl.host,
    )


def acl_of(fields: AclFields) -> Acl:
    """Return the ACL that a message has. Raises `UnexpectedArgumentError`."""
    return checked_acl(
        Acl(
            value_of(ResourceType, fields.resource_type),
            fields.name,
            value_of(PatternType, fields.pattern),
            fields.principal,
            fields.host,
            value_of(Operation, fields.operation),
            value_of(Permission, fields.permission),
        )
    )


def fields_of_filter(asked: AclFilter) -> AclFields:
    """Return a filter as messages have it."""
    return AclFields(
        asked.principal or "",
        word_of(asked.permission),
        word_of(asked.operation),
        word_of(asked.resource_type),
        asked.name or "",
        word_of(asked.pattern),
        asked.host or "",
    )


def filter_of(fields: AclFields) -> AclFilter:
    """Return the filter that a message has. Raises `UnexpectedArgumentError`."""
    return AclFilter(
        value_of(ResourceType, fields.resource_type),
        fields.name or None,
        value_of(PatternType, fields.pattern),
        fields.principal or None,
        fields.host or None,
        value_of(Operation, fields.operation),
        value_of(Permission, fields.permission),
    )
