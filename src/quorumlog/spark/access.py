"""How Spark's jobs reach a cluster: the options that say it, and what tasks make of them.

What a job carries names a context, or files; secrets are read on the machine that needs them, or
are in the bytes of a task (`Carried`). So no plan, no event log and no page of Spark can show one.
"""

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeAlias

import msgspec

from quorumlog.client import Context
from quorumlog.client.contexts import Access, OpenContext, chosen_access
from quorumlog.model.errors import ConfigError, UnexpectedArgumentError
from quorumlog.spark.carried import Carried, in_words_of_driver
from quorumlog.spark.option_values import OptionValues

AnyAccess: TypeAlias = str | Access | Carried
"""A cluster: addresses, or an `Access`, or one that tasks carry with its credentials."""

FILES: Final = {
    "ca": "file of the authorities that have signed the nodes' certificates, or system",
    "certificate": "file of the job's own certificate",
    "keyFile": "file of its private key",
    "clusterId": "id of the cluster, the only one that is spoken to",
    "verifyName": "host (default): certificates name the host that was dialled; or cluster: "
    "a node of clusterId",
    "mechanism": "SCRAM-SHA-256 (default), SCRAM-SHA-512 or PLAIN",
    "user": "name of the user who logs in",
    "passwordFile": "file with the password of the user",
    "tokenFile": "file with a token of OAUTHBEARER, in place of user and password",
}
"""Options in the place of a context."""
OPTIONS: Final = {
    "context": "name of a context, which says all that the options of servers and TLS do",
    **FILES,
    "credentials": "here (default): each machine reads the context and the files that are named; "
    "or driver: the driver reads them, and tasks carry what is in them",
}
_KEYS: Final = {name: "key" if name == "keyFile" else name for name in FILES}
"""The options by their names in a context."""
_ACCESS: Final = msgspec.json.Decoder(Access)
_SECRET: Final = ("password", "secret", "token", "sasl.jaas.config", "key.pem")
"""Ends of names of options whose value would be a secret."""


def refuse_secrets(raw: Mapping[str, str]) -> None:
    """Raise `UnexpectedArgumentError`, without the value, for an option that would be a secret."""
    for given in raw:
        if given.lower().endswith(_SECRET):
            raise UnexpectedArgumentError(
                f"option {given!r} cannot be set: Spark keeps options in plans and event logs. Put "
                "the secret into a file of mode 600 on each machine, and give passwordFile or "
                "tokenFile, or a context"
            )


def where_of(values: OptionValues, servers: str) -> AnyAccess:
    """Return the cluster that options name; `servers`: the option that has addresses.

    Without any of them the environment of the driver says it, or its default context. Raises
    `UnexpectedArgumentError`.
    """
    found = _named(values, servers)
    if not values.choice("credentials", {"here": False, "driver": True}):
        return found
    if isinstance(found, str):
        raise UnexpectedArgumentError(
            f"option credentials=driver: {servers} is given alone, so there are no credentials"
        )
    return Carried(found)


def _named(values: OptionValues, servers: str) -> str | Access:
    files = [name for name in FILES if values.is_given(name)]
    if values.text("context"):
        for other in (servers, *files):
            if values.is_given(other):
                raise UnexpectedArgumentError(
                    f"options context and {other} are given; the context says it: leave one out"
                )
        return Access(context=values.text("context"))
    if not files and not values.is_given(servers):
        try:
            found = chosen_access(wants="kafka" if servers.startswith("kafka.") else "servers")
        except ConfigError as error:
            raise UnexpectedArgumentError(str(error)) from None
        if found is not None:
            return found
    addresses = values.addresses(servers)
    if not files:
        return addresses
    given = {_KEYS[name]: values.text(name) for name in files}
    if given.get("verifyName", "host") not in ("host", "cluster"):
        raise values.wrong("verifyName")
    given["kafka" if servers.startswith("kafka.") else "servers"] = addresses
    return Access(given=msgspec.convert(given, Context))


def options_of(where: AnyAccess, servers: str) -> dict[str, str]:
    """Return the options that name a cluster; `where_of` makes the same of them again."""
    if isinstance(where, str):
        return {servers: where}
    if isinstance(where, Carried):
        return {**options_of(where.access, servers), "credentials": "driver"}
    if where.context:
        return {"context": where.context}
    keys = msgspec.to_builtins(where.given)
    found = {name: keys[key] for name, key in _KEYS.items() if key in keys}
    return {**found, servers: keys["kafka" if servers.startswith("kafka.") else "servers"]}


def text_of(where: AnyAccess) -> str:
    """Return a cluster as one text, from which `of_text` makes the same again.

    It has no credentials: of a cluster that tasks carry it is what names them on the driver.
    """
    if isinstance(where, Carried):
        where = where.access
    return where if isinstance(where, str) else msgspec.json.encode(where).decode()


def of_text(text: str) -> AnyAccess:
    """Return the cluster that `text_of` made a text of. Raises `ValueError` for other texts."""
    return _ACCESS.decode(text) if text.startswith("{") else text


def open_nodes(where: AnyAccess) -> OpenContext:
    """Return addresses of nodes, and secrets as this machine has them. Raises `ConfigError`."""
    if isinstance(where, str):
        return OpenContext(where, "", None)
    with said_where():
        found = _opened(where)
        if not found.servers:
            raise ConfigError(f"{where} names no nodes: it lacks servers")
    return found


def open_brokers(where: AnyAccess) -> OpenContext:
    """Return addresses of brokers, and secrets as this machine has them. Raises `ConfigError`."""
    if isinstance(where, str):
        return OpenContext("", where, None)
    with said_where():
        found = _opened(where)
        if not found.kafka:
            raise ConfigError(f"{where} names no brokers: it lacks kafka")
    return found


def _opened(where: Access | Carried) -> OpenContext:
    return where.open() if isinstance(where, Carried) else where.found().open()


@contextmanager
def said_where() -> Iterator[None]:
    """Have a `ConfigError` say on which machine it was raised: tasks run on several."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"on {platform.node()}: {in_words_of_driver(str(error))}") from None
