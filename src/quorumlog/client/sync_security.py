"""`SecurityAdmin` for code without an event loop."""

from collections.abc import Iterable, Mapping

from quorumlog.auth.acls import ALL_ACLS, Acl, AclFilter, Operation, Resource
from quorumlog.auth.verifiers import ITERATIONS, MECHANISMS
from quorumlog.client.loop_thread import LoopThread
from quorumlog.client.security_admin import Access, NodeSecurity, Quotas, SecurityAdmin, User


class SyncSecurityAdmin:
    """Users, ACLs and quotas of a `SyncClient`'s cluster; get it as `client.security`.

    See `SecurityAdmin` for arguments, results and errors.
    """

    def __init__(self, security: SecurityAdmin, thread: LoopThread) -> None:
        self._security = security
        self._thread = thread

    def users(self) -> list[User]:
        """See `SecurityAdmin.users`."""
        return self._thread.wait(self._security.users())

    def add_user(
        self,
        name: str,
        password: str,
        *,
        mechanisms: Iterable[str] = tuple(MECHANISMS),
        iterations: int = ITERATIONS,
    ) -> None:
        """See `SecurityAdmin.add_user`."""
        self._thread.wait(
            self._security.add_user(name, password, mechanisms=mechanisms, iterations=iterations)
        )

    def change_password(
        self,
        name: str,
        password: str,
        *,
        mechanisms: Iterable[str] = tuple(MECHANISMS),
        iterations: int = ITERATIONS,
    ) -> None:
        """See `SecurityAdmin.change_password`."""
        self._thread.wait(
            self._security.change_password(
                name, password, mechanisms=mechanisms, iterations=iterations
            )
        )

    def remove_user(self, name: str) -> None:
        """See `SecurityAdmin.remove_user`."""
        self._thread.wait(self._security.remove_user(name))

    def acls(self, asked: AclFilter = ALL_ACLS) -> list[Acl]:
        """See `SecurityAdmin.acls`."""
        return self._thread.wait(self._security.acls(asked))

    def add_acls(self, acls: Iterable[Acl]) -> None:
        """See `SecurityAdmin.add_acls`."""
        self._thread.wait(self._security.add_acls(acls))

    def remove_acls(self, asked: AclFilter) -> list[Acl]:
        """See `SecurityAdmin.remove_acls`."""
        return self._thread.wait(self._security.remove_acls(asked))

    def check(
        self, who: str, operation: Operation, resource: Resource, *, host: str = ""
    ) -> Access:
        """See `SecurityAdmin.check`."""
        return self._thread.wait(self._security.check(who, operation, resource, host=host))

    def quotas(self) -> list[Quotas]:
        """See `SecurityAdmin.quotas`."""
        return self._thread.wait(self._security.quotas())

    def alter_quotas(
        self, entity: Iterable[tuple[str, str | None]], values: Mapping[str, float | None]
    ) -> None:
        """See `SecurityAdmin.alter_quotas`."""
        self._thread.wait(self._security.alter_quotas(entity, values))

    def check_nodes(self) -> list[NodeSecurity]:
        """See `SecurityAdmin.check_nodes`."""
        return self._thread.wait(self._security.check_nodes())
