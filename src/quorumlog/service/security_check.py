"""What stands open at a node: what its configuration lacks, and who comes plain or anonymous."""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from quorumlog.model.config import NodeConfig, is_loopback, parse_address
from quorumlog.model.messages.security import CheckSecurityResponse, ClientFields
from quorumlog.model.security_config import SecurityConfig
from quorumlog.node.node import Node
from quorumlog.transport.node_tls import WARN_BEFORE_S, WARN_OF_CRL_BEFORE_S, NodeTls
from quorumlog.transport.shared_resources import SharedResources
from quorumlog.transport.unsecured import ClientConnection

if TYPE_CHECKING:
    from quorumlog.kafka.listener import KafkaListener

Finding: TypeAlias = tuple[str, str]
"""A word for programs, and a sentence for people."""
_DAY_S: Final = 86_400.0


class SecurityCheck:
    """Says what stands open at a node; `kafka`: its port for Kafka's clients, if it has one."""

    def __init__(self, node: Node, kafka: "KafkaListener | None") -> None:
        self._node = node
        self._kafka = kafka

    def __call__(self) -> CheckSecurityResponse:
        """Return it as it is now."""
        node, kafka = self._node, self._kafka
        clients = _clients("native", node.listener.shared, node.listener.connections)
        if kafka is not None:
            clients += _clients("kafka", kafka.shared, kafka.connections)
        clients.sort(key=lambda one: one.ago_s)
        room = node.config.limits.message_bytes_max // 2
        sizes = accumulate(len(msgspec.msgpack.encode(one)) for one in clients)
        count = sum(size <= room for size in sizes)
        return CheckSecurityResponse(
            node_id=node.config.self_id,
            findings=findings_of(
                node.config,
                node.tls,
                are_keys_refused=node.instruments.logins.are_keys_refused(),
            ),
            clients=clients[:count],
            left_out=len(clients) - count,
        )


def _clients(
    port: str, shared: SharedResources, connections: Iterable[ClientConnection]
) -> list[ClientFields]:
    return [
        ClientFields(one.principal, one.host, port, one.name, one.is_plain, int(ago_s))
        for one, ago_s in shared.unsecured.seen(list(connections), shared.now())
    ]


def findings_of(
    config: NodeConfig, tls: NodeTls | None, *, are_keys_refused: bool = False
) -> list[Finding]:
    """Return what the configuration of a node lacks, and which of its files will soon be no good.

    `tls`: what the node speaks by it; None: nothing is encrypted. `are_keys_refused`: whether a
    newer file with the keys of tokens cannot be used.
    """
    found = [*_of_tls(config), *_of_clients(config, config.security), *_of_admin_port(config)]
    if config.insecure:
        text = "insecure = true: the node would start without [tls] or [security], too; remove it"
        found.append(("insecure", text))
    if not config.audit_files:
        found.append(("no-audit-log", "auditFiles = 0: nobody records who administered what"))
    if are_keys_refused:
        text = "oauthJwksFile cannot be used as it is now: the keys that it had before still count"
        found.append(("oauth-keys-refused", text))
    return found if tls is None else [*found, *_of_files(tls)]


def _of_tls(config: NodeConfig) -> Iterator[Finding]:
    if config.tls is None:
        yield (
            "no-tls",
            "[tls] is missing: nothing is encrypted, and whoever reaches the node's port is "
            "believed to be a peer",
        )
    elif config.tls.mode != "required":
        yield (
            "tls-optional",
            'mode = "optional" in [tls]: plain connections are served, and whoever makes one is '
            "believed to be a peer",
        )


def _of_clients(config: NodeConfig, security: SecurityConfig | None) -> Iterator[Finding]:
    if security is None:
        text = "[security] is missing: whoever gets in may do everything"
        yield "no-security", text
        return
    are_certified = config.tls is not None and config.tls.client_auth == "required"
    if security.login != "required" and not are_certified:
        yield (
            "login-optional",
            f'login = "{security.login}" in [security]: who shows no certificate and does not log '
            "in is served as User:ANONYMOUS",
        )
    if security.authorization != "on":
        which = "is refused nothing" if security.authorization == "log" else "may do everything"
        text = f'authorization = "{security.authorization}" in [security]: whoever gets in {which}'
        yield f"authorization-{security.authorization}", text


def _of_admin_port(config: NodeConfig) -> Iterator[Finding]:
    if not config.admin_listen or is_loopback(parse_address(config.admin_listen)[0]):
        return
    if config.tls is None or config.admin_anonymous == "all":
        text = f"the admin port at {config.admin_listen} shows everything to whoever reaches it"
        yield "admin-port-open", text


def _of_files(tls: NodeTls) -> Iterator[Finding]:
    if tls.has_failed:
        text = "newer files of [tls] cannot be used; the node's log says why"
        yield "tls-files-refused", text
    for key, left_s in tls.seconds_left.items():
        if left_s < 0:
            yield f"expired-{key}", f"{key} in [tls] has expired"
        elif left_s < (WARN_OF_CRL_BEFORE_S if key == "crl" else WARN_BEFORE_S):
            yield f"expires-{key}", f"{key} in [tls] expires in {left_s / _DAY_S:.1f} days"
