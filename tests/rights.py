"""Who may do what in tests: ACLs in short, and a view of them that a test changes."""

from types import SimpleNamespace

from quorumlog.auth.acls import ANY_HOST, Acl, Operation, PatternType, Permission, ResourceType
from quorumlog.auth.permits import Authorizer
from quorumlog.auth.rules import PrincipalRules
from quorumlog.auth.view import SecurityView

TYPES = {
    "cluster": ResourceType.CLUSTER,
    "group": ResourceType.GROUP,
    "topic": ResourceType.TOPIC,
    "consumers": ResourceType.CONSUMER_GROUP,
    "transaction": ResourceType.TRANSACTIONAL_ID,
}


def acl(principal, text, *, host=ANY_HOST):
    """Return the ACL of a text such as `read topic flights`, or `deny write group f*`."""
    words = text.split()
    if words[-1] == "cluster":
        words.append("kafka-cluster")
    *deny, operation, kind, name = words
    is_prefix = name.endswith("*") and name != "*"
    return Acl(
        TYPES[kind],
        name.removesuffix("*") if is_prefix else name,
        PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
        principal,
        host,
        Operation[operation.upper()],
        Permission.DENY if deny else Permission.ALLOW,
    )


def view_of(acls, version=1):
    """Return the view of some ACLs."""
    by_principal = {}
    for one in acls:
        by_principal.setdefault(one.principal, {})[one] = None
    rules = {who: PrincipalRules(found) for who, found in by_principal.items()}
    return SecurityView(version=version, acls=by_principal, rules=rules)


class RightsOfTest:
    """The ACLs of a test; `refused`: what was reported; `is_ready`: whether the node knows ACLs."""

    def __init__(self, *, super_users=("User:root",), only_reports=False):
        self.acls = []
        self.is_ready = True
        self.view = view_of([])
        self.refused = []
        self.authorizer = Authorizer(
            lambda: self.view,
            frozenset(super_users),
            self.refused.append,
            only_reports=only_reports,
            is_ready=lambda: self.is_ready,
        )

    def give(self, principal, *texts):
        self.acls += [acl(principal, text) for text in texts]
        self._changed()

    def take(self, principal, *texts):
        gone = {acl(principal, text) for text in texts}
        self.acls = [one for one in self.acls if one not in gone]
        self._changed()

    def _changed(self):
        self.view = view_of(self.acls, self.view.version + 1)

    def permit(self, principal, address="192.0.2.1:5"):
        client = SimpleNamespace(
            principal=principal,
            login_mechanism="",
            mechanism="SCRAM-SHA-256",
            remote_address=address,
        )
        return self.authorizer.permit(client)
