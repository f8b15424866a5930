"""Contexts: names for clusters, each with where it is, how it is trusted and who one is there.

They are in one file, so that a command, a client and a job of Spark name a context instead of ten
options. The file has names of files, and no secret; whoever uses a context reads those files.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from quorumlog.client import options
from quorumlog.client.secret_sources import SecretFile, secret_from_environment, secret_from_file
from quorumlog.client.security import SYSTEM_CA, Security
from quorumlog.model.config import check_name, parse_address
from quorumlog.model.config_keys import quotes_advice, unknown_key, wrong_value
from quorumlog.model.errors import ConfigError
from quorumlog.model.secrets import Secret
from quorumlog.model.wording import there_is_no
from quorumlog.transport.private_files import PRIVATE_BYTES_MAX, check_private, read_own

CONTEXT_VARIABLE: Final = "QUORUMLOG_CONTEXT"
SERVERS_VARIABLE: Final = "QUORUMLOG_SERVERS"
BROKERS_VARIABLE: Final = "QUORUMLOG_BOOTSTRAP_SERVERS"
"""Addresses of brokers: Kafka's port of a node is another one than its own."""
FILE_VARIABLE: Final = "QUORUMLOG_CONTEXTS"
"""Path of a file of contexts in place of the user's, such as one that all users of a machine share
for a job."""
NEW_PASSWORD_VARIABLE: Final = "QUORUMLOG_NEW_PASSWORD"  # noqa: S105  (its name)
"""What `user add` and `user passwd` may have a password from."""
NO_PLACE: Final = {
    "password": "a password is in no file of contexts; put it into a file of its own, and name that"
    " file as passwordFile, or name a variable of the environment as passwordEnv",
    "token": "a token is in no file of contexts; put it into a file of its own, and name that file "
    "as tokenFile",
}
"""Keys that somebody may try, and what to do instead."""

_KEYS: Final = {"cluster_id": "clusterId", "verify_name": "verifyName"}
"""What a file of contexts calls attributes of `Security`."""

Ask: TypeAlias = Callable[[str], str]
"""Asks the person at the terminal for a secret: question → answer."""


class Context(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Which cluster, and how it is reached. It has names of files, and no secret.

    A client can be made of it, `Client(context, group)`. Unless something beyond addresses is
    given, the cluster is spoken to without TLS.

    Attributes:
        servers: addresses of some nodes, as `host:port` joined by commas.
        kafka: addresses of some brokers (their kafkaListen).
        cluster_id: see `Security`, as for `ca`, `certificate`, `key`, `verify_name`, `mechanism`
            and `user`.
        password_file: file with the user's password.
        password_env: variable of the environment that has it instead.
        token_file: file with a token of OAUTHBEARER, which is read again for each login.
    """

    servers: str = ""
    kafka: str = ""
    cluster_id: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    mechanism: str = ""
    user: str = ""
    password_file: str = ""
    password_env: str = ""
    token_file: str = ""
    verify_name: Literal["", "host", "cluster"] = ""

    @property
    def is_secure(self) -> bool:
        """Whether the cluster is spoken to by TLS."""
        return self != Context(servers=self.servers, kafka=self.kafka)

    def open(
        self, *, environment: Mapping[str, str] = os.environ, ask: Ask | None = None
    ) -> "OpenContext":
        """Return what a client needs, with secrets read from where they are.

        `ask` asks for a password that is in no file and no variable. Raises `ConfigError`.
        """
        return OpenContext(self.servers, self.kafka, self._security(environment, ask))

    def _security(self, environment: Mapping[str, str], ask: Ask | None) -> Security | None:
        if not self.is_secure:
            return None
        if self.password_file and self.password_env:
            raise ConfigError("passwordFile and passwordEnv are given: one of them is enough")
        token = SecretFile(self.token_file, "token file") if self.token_file else None
        if token is not None:
            token.reveal()  # its errors come now, not at the first login
        password: Secret | None = None
        if self.password_file:
            password = secret_from_file(self.password_file, "password file")
        elif self.password_env:
            password = secret_from_environment(self.password_env, environment, "password")
        elif self.user and token is None:
            if ask is None:
                raise ConfigError(
                    f"the password of {self.user} is in no file: give passwordFile, or passwordEnv"
                )
            password = Secret(ask(f"Password of {self.user}: "))
        try:
            return self._checked(password, token)
        except ConfigError as error:  # its words are those of the file
            raise ConfigError(renamed(str(error), _KEYS)) from None

    def _checked(self, password: Secret | None, token: SecretFile | None) -> Security:
        return Security(
            ca=self.ca or SYSTEM_CA,
            certificate=self.certificate,
            key=self.key,
            verify_name=self.verify_name or "host",
            cluster_id=self.cluster_id,
            mechanism=self.mechanism,
            user=self.user,
            password=password,
            token=token,
        )


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a text with other names for what it is about, wherever they are whole words."""
    for name, other in names.items():
        text = re.sub(rf"\b{name}\b", other, text)
    return text


class OpenContext(msgspec.Struct, frozen=True):
    """What a context says, with its secrets: it cannot be sent to another process."""

    servers: str
    kafka: str
    security: Security | None


Servers: TypeAlias = str | Sequence[str] | Context | OpenContext
"""Addresses of nodes, as one text or several, or a context that has them."""


def to_dial(servers: Servers, security: Security | None) -> tuple[list[str], Security | None]:
    """Return the addresses of nodes, and how to speak to them. Raises `ConfigError`."""
    if isinstance(servers, Context):
        servers = servers.open()
    if isinstance(servers, OpenContext):
        if security is not None:
            raise ConfigError("a context has its own security: give addresses to choose another")
        if not servers.servers:
            raise ConfigError("the context names no nodes: it lacks servers")
        security = servers.security
        servers = servers.servers
    addresses = options.addresses_of(servers)
    for each in addresses:
        parse_address(each)
    if security is not None and not isinstance(security, Security):
        raise ConfigError(f"security is a Security or None, not {options.shown(security)}")
    return addresses, security


_PATHS: Final = ("ca", "certificate", "key", "password_file", "token_file")
_NAMING_SECRETS: Final = ("key", "password_file", "password_env", "token_file")
KEYS: Final = tuple(field.encode_name for field in msgspec.structs.fields(Context))
"""The keys of a context as the file has them."""


class Contexts(msgspec.Struct, frozen=True):
    """What a file of contexts has: each by its name, and the one that is used unless told."""

    path: Path
    default: str = ""
    by_name: Mapping[str, Context] = {}

    def named(self, name: str) -> Context:
        """Return a context. Raises `ConfigError` if there is none of this name."""
        found = self.by_name.get(name)
        if found is None:
            lacks = there_is_no("context", [name], self.by_name, "quorumlog context list")
            there = "" if self.path.exists() else ", a file that is not there"
            raise ConfigError(f"{lacks}; they are in {self.path}{there}")
        return found


def contexts_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the user's contexts are (`XDG_CONFIG_HOME` of the XDG base directories)."""
    if given := environment.get(FILE_VARIABLE):
        return Path(given)
    root = environment.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(root):  # the XDG specification: others are ignored
        root = os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(root, "quorumlog", "contexts.toml")


def read_contexts(path: Path) -> Contexts:
    """Return the contexts in a file; none if it is not there, or the null device, which is how to
    say that there are none. Paths in the file become absolute.

    Raises `ConfigError` with the file, the key and what is wrong, also for a file that others than
    its user and root can change: they could name another cluster, and other authorities. One that
    names secrets must not be read by others either.
    """
    if str(path) == os.devnull:
        return Contexts(path)
    try:
        raw, rights = read_own(path, "contexts", PRIVATE_BYTES_MAX)
    except FileNotFoundError:
        return Contexts(path)
    except OSError as error:
        raise ConfigError(f"contexts {path} cannot be read: {error.strerror}") from None
    found = contexts_of(raw, path)
    if any(getattr(each, name) for each in found.by_name.values() for name in _NAMING_SECRETS):
        check_private(rights, path, "contexts")
    return found


def contexts_of(raw: bytes, path: Path) -> Contexts:
    """Return the contexts that a file has, which may not be written yet. Raises `ConfigError`."""
    try:
        return _contexts_of(msgspec.toml.decode(raw), path)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}{quotes_advice(str(error))}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _contexts_of(document: Any, path: Path) -> Contexts:
    for key in document:
        if key not in ("default", "contexts"):
            raise ConfigError(unknown_key(key, "the file's top", ("default", "contexts")))
    default, tables = document.get("default", ""), document.get("contexts", {})
    if not isinstance(default, str):
        raise ConfigError(wrong_value("default", str, default))
    if not isinstance(tables, dict):
        raise ConfigError("contexts are tables, each begun by [contexts.NAME]")
    by_name = {name: _context_of(name, table, path.parent) for name, table in tables.items()}
    if default and default not in by_name:
        lacks = there_is_no("context", [default], by_name, "quorumlog context list")
        raise ConfigError(f"default: {lacks}")
    return Contexts(path, default, by_name)


def _context_of(name: str, table: Any, directory: Path) -> Context:
    where = f"[contexts.{name}]"
    check_name("context", name)
    if not isinstance(table, dict):
        raise ConfigError(f"{name} is a table, begun by {where} in a line of its own")
    for key, value in table.items():
        if key in NO_PLACE:
            raise ConfigError(f"{where}: {NO_PLACE[key]}")
        if key not in KEYS:
            raise ConfigError(unknown_key(key, where, KEYS))
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {wrong_value(key, str, value)}")
        if key == "verifyName" and value not in ("host", "cluster"):
            wrong = wrong_value(key, Literal["host", "cluster"], value)
            raise ConfigError(f"{where}: {wrong}")
    return absolute(msgspec.convert(table, Context), directory)


def absolute(context: Context, directory: Path) -> Context:
    """Return a context whose files are named from a directory on, with absolute paths."""
    paths = {}
    for name in _PATHS:
        path = getattr(context, name)
        if path and not (name == "ca" and path == SYSTEM_CA):
            paths[name] = os.path.abspath(directory / os.path.expanduser(path))
    return msgspec.structs.replace(context, **paths)


def without_passwords(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables for programs that run for long, without those that have passwords.

    These are the ones that the user's contexts name (passwordEnv), and `NEW_PASSWORD_VARIABLE`.
    """
    names = {NEW_PASSWORD_VARIABLE}
    with suppress(ConfigError):  # whoever needs a context is told what is wrong with the file
        contexts = read_contexts(contexts_path(environment))
        names.update(each.password_env for each in contexts.by_name.values())
    return {name: value for name, value in environment.items() if name not in names}


class Access(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which cluster a job is about: the name of a context, or what one would say.

    It has no secret, so it can be sent to another machine, and shown. A name is looked up where the
    cluster is needed: that machine has the file of contexts, and the files that it names.
    """

    context: str = ""
    given: Context = Context()

    def found(self, environment: Mapping[str, str] = os.environ) -> Context:
        """Return the context, read here. Raises `ConfigError`."""
        if not self.context:
            return self.given
        return read_contexts(contexts_path(environment)).named(self.context)

    def __str__(self) -> str:
        return f"context {self.context}" if self.context else self.given.servers or self.given.kafka


def chosen_access(
    context: str = "",
    servers: str = "",
    *,
    environment: Mapping[str, str] = os.environ,
    wants: Literal["servers", "kafka"] = "servers",
) -> Access | None:
    """Return what is meant by a context's name, or by addresses, if one of them is given.

    Else what the environment says counts, and after that the default context; None: nothing says
    it. `wants`: whether nodes or brokers are looked for; addresses of brokers alone say nothing of
    nodes. Raises `ConfigError` if the environment says two things, or the file cannot be used, or
    is not where `FILE_VARIABLE` says.
    """
    if context and servers:
        raise ConfigError("a context has addresses of its own: give either it or them")
    if not context and not servers:
        context = environment.get(CONTEXT_VARIABLE, "")
        servers = environment.get(SERVERS_VARIABLE, "")
        brokers = environment.get(BROKERS_VARIABLE, "")
        if context and (servers or brokers):
            other = SERVERS_VARIABLE if servers else BROKERS_VARIABLE
            raise ConfigError(f"{CONTEXT_VARIABLE} and {other} are both set: unset one of them")
        if servers or (brokers and wants == "kafka"):
            return Access(given=Context(servers=servers, kafka=brokers))
    if servers:
        return Access(given=Context(servers=servers))
    context = context or _default_of(environment)
    return Access(context=context) if context else None


def _default_of(environment: Mapping[str, str]) -> str:
    path = contexts_path(environment)
    if environment.get(FILE_VARIABLE) and not path.exists():
        raise ConfigError(f"{FILE_VARIABLE} names {path}, which is not there")
    return read_contexts(path).default


def find_context(name: str = "", *, environment: Mapping[str, str] = os.environ) -> Context:
    """Return a context by its name, for `Client(find_context("prod"), group)`.

    "": the one that the environment names (`QUORUMLOG_CONTEXT`, or addresses of nodes in
    `QUORUMLOG_SERVERS`), or the default one of the file. Raises `ConfigError` if there is none, or
    the file cannot be used.
    """
    found = chosen_access(name, environment=environment)
    if found is None:
        path = contexts_path(environment)
        raise ConfigError(
            f"no cluster is named: give a context, set {CONTEXT_VARIABLE} or {SERVERS_VARIABLE}, "
            f'or write default = "NAME" into {path}'
        )
    return found.found(environment)
