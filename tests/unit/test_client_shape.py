"""Asynchronous and synchronous clients have the same methods, and both are what docs may use."""

import ast
import re
import warnings
from inspect import getdoc, getmembers, isfunction, signature
from pathlib import Path

import pytest

import quorumlog
from quorumlog import client as clients
from quorumlog.client import (
    KV,
    Client,
    Consumer,
    GroupAdmin,
    MachineCalls,
    Producer,
    SyncClient,
    SyncConsumer,
    SyncGroupAdmin,
    SyncKV,
    SyncMachineCalls,
    SyncProducer,
    SyncTransactions,
    Transactions,
)

ROOT = Path(__file__).parents[2]
PAIRS = [
    (Client, SyncClient),
    (Consumer, SyncConsumer),
    (GroupAdmin, SyncGroupAdmin),
    (KV, SyncKV),
    (MachineCalls, SyncMachineCalls),
    (Producer, SyncProducer),
    (Transactions, SyncTransactions),
]
ONLY_ASYNCHRONOUS = {
    Producer: {"send_nowait", "failure", "undelivered"},
    Transactions: {"producer"},
}
"""Methods without a twin; the docstring of the synchronous class says why."""
ONLY_SYNCHRONOUS = {
    SyncClient: {"asynchronous", "each", "wait"},
    SyncKV: {"close"},  # it may own its client
}
DEPRECATED = "Deprecated: use `"


def is_deprecated(member):
    return (getdoc(member) or "").startswith(DEPRECATED)


def public(kind):
    """Return what users may call or read: methods and properties, without deprecated ones."""
    members = getmembers(kind, lambda member: isfunction(member) or isinstance(member, property))
    return {
        name: member
        for name, member in members
        if not name.startswith("_") and not is_deprecated(member)
    }


def parameters(function):
    return [(p.name, p.kind, p.default) for p in signature(function).parameters.values()]


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS)
def test_both_have_the_same_methods(asynchronous, synchronous):
    there, here = public(asynchronous), public(synchronous)
    missing = there.keys() - here.keys() - {"limits", "retry_unknown"}
    assert missing == ONLY_ASYNCHRONOUS.get(asynchronous, set())
    for name in missing:
        assert f"`{name}`" in synchronous.__doc__, "the docstring says why"
    added = here.keys() - there.keys() - {"limits", "retry_unknown", "stats"}
    assert added == ONLY_SYNCHRONOUS.get(synchronous, set())


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS)
def test_methods_have_the_same_parameters(asynchronous, synchronous):
    there, here = public(asynchronous), public(synchronous)
    for name in there.keys() & here.keys():
        if isfunction(there[name]):
            assert parameters(here[name]) == parameters(there[name]), name


def test_a_synchronous_client_has_the_same_parts():
    with SyncClient("127.0.0.1:1") as client:
        assert isinstance(client.admin, SyncGroupAdmin)
        assert isinstance(client.machine, SyncMachineCalls)
        assert client.timeout_ms == client.asynchronous.timeout_ms
        assert client.limits is client.asynchronous.limits
        assert client.retry_unknown is False


def old_methods():
    found = []
    for kind in (GroupAdmin, SyncClient, Transactions):
        for name, member in getmembers(kind, isfunction):
            if is_deprecated(member):
                found.append((kind, name))
    return found


def test_deprecated_methods_are_known():
    assert len(old_methods()) == 9


@pytest.mark.parametrize("name", [name for kind, name in old_methods() if kind is SyncClient])
def test_an_old_method_works_and_warns(name, monkeypatch):
    new = "history" if name == "stories" else name
    called = []

    def method(self, *args, **options):
        called.append((args, options))

    monkeypatch.setattr(SyncGroupAdmin, new, method)
    given = {"node_id": "n", "address": "h:1", "timeout_s": 1}
    wanted = signature(getattr(SyncClient, name)).parameters
    options = {key: value for key, value in given.items() if key in wanted}
    expected = rf"SyncClient\.{name} .*admin\.{new}"
    with (
        SyncClient("127.0.0.1:1") as client,
        pytest.warns(DeprecationWarning, match=expected) as warned,
    ):
        getattr(client, name)(**options)
    assert warned[0].filename == __file__
    assert len(called) == 1


async def test_old_names_of_the_asynchronous_side_work_and_warn(monkeypatch):
    async def found(self):
        return "found"

    monkeypatch.setattr(GroupAdmin, "history", found)
    monkeypatch.setattr(Transactions, "init", found)
    async with Client("127.0.0.1:1") as client:
        with pytest.warns(DeprecationWarning, match=r"use GroupAdmin\.history"):
            assert await client.admin.stories() == "found"
        with pytest.warns(DeprecationWarning, match=r"use Transactions\.init"):
            assert await Transactions(client, "id").begin() == "found"


def imported_by(text):
    """Return what Python code, or what is between fences of a page, imports from us."""
    for match in re.finditer(r"^from (quorumlog(?:\.client)?) import (.+)$", text, re.MULTILINE):
        yield match[1], {name.split(" as ")[0].strip(" ()") for name in match[2].split(",")}


def test_readme_pages_and_examples_use_public_names_only():
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.py")]
    for file in files:
        for module, names in imported_by(file.read_text()):
            allowed = quorumlog.__all__ if module == "quorumlog" else clients.__all__
            modules = {"client", "local", "machine", "spark"}
            assert names - {""} - modules <= set(allowed), f"{file}: {names}"


def test_no_client_of_ours_uses_an_old_name():
    old = {name for kind, name in old_methods() if kind is SyncClient}
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                value = node.func.value
                is_client = isinstance(value, ast.Name) and value.id == "client"
                assert not (is_client and node.func.attr in old), f"{file}:{node.lineno}"


def test_nothing_warns_when_names_are_imported():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(getattr(clients, name) for name in clients.__all__)
