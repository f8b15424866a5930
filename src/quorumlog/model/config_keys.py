"""Advice for unknown keys of a configuration, for values of wrong types, and for invalid TOML."""

import difflib
import re
from collections.abc import Collection, Mapping
from types import NoneType, UnionType
from typing import Final, Literal, get_args, get_origin

import msgspec

from quorumlog.model.dledger_keys import REFUSED

TOP, GROUPS, LIMITS, TLS = "the file's top", "[[groups]]", "[limits]", "[tls]"
SECURITY: Final = "[security]"
"""The tables of a file as messages name them."""
ALIKE = 0.75
"""A key is taken for a misspelt one if they are so alike, as `difflib` measures it."""
_QUOTES = ("Invalid value", "Expected newline or end of document after a statement")
"""How the decoder speaks of a string without quotes."""

_KINDS: Final = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: 'text in quotes, as in "text"',
}
_WRONG: Final = re.compile(
    r"(?:Expected `|Invalid enum value ).* - at "
    r"`\$(?:\.(groups)\[(\d+)\]|\.(limits|tls|security))?\.(?!groups\[)(\w+)(?:\[\d+\])?`"
)
"""How the decoder speaks of a value of a wrong type, and where it stands."""
_NO_GROUP: Final = re.compile(r"Expected `object`, got `\w+` - at `\$\.groups\[(\d+)\]`")
_OF_NO_KIND: Final = re.compile(r"Expected `.*`, got `\w+` - at `\$\.(\w+)\[\.\.\.\]`")
_MISSING: Final = re.compile(
    r"Object missing required field `(\w+)`(?: - at `\$\.(?:groups\[(\d+)\]|(tls))`)?"
)
"""And of an element of [[groups]] that is no table, of a value in a table whose keys may be any,
and of a key that a table must have."""


def key_of(name: str) -> str:
    """Return a field's name as it is written in a file."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def unknown_keys(document: Mapping[str, object], tables: Mapping[str, set[str]]) -> str:
    """Return which keys of a file are unknown, and what to do about each; "" if all are known.

    `tables`: for TOP, GROUPS and the other tables the keys that belong there.
    """
    found = [_unknown_key(key, TOP, TOP, tables) for key in document if key not in tables[TOP]]
    groups = document.get("groups")
    for group in groups if isinstance(groups, list) else []:
        if isinstance(group, dict):
            where = f"{GROUPS} (group {group.get('group', '?')})"
            unknown = [key for key in group if key not in tables[GROUPS]]
            found += [_unknown_key(key, where, GROUPS, tables) for key in unknown]
    for name in (LIMITS, TLS, SECURITY):
        table = document.get(name.strip("[]"))
        if isinstance(table, dict):
            unknown = [key for key in table if key not in tables[name]]
            found += [_unknown_key(key, name, name, tables) for key in unknown]
    sentences = found[:1] + [f"U{text[1:]}" for text in found[1:]]
    return ". ".join(sentences).replace("?. ", "? ")


def unknown_key(key: str, where: str, keys: Collection[str]) -> str:
    """Return that a key is unknown in a table, and which one may be meant instead."""
    near = difflib.get_close_matches(key, sorted(keys), n=1, cutoff=ALIKE)
    return f"unknown key `{key}` in {where}" + (f"; did you mean {near[0]}?" if near else "")


def _unknown_key(key: str, where: str, table: str, tables: Mapping[str, set[str]]) -> str:
    text = f"unknown key `{key}` in {where}"
    if key in REFUSED:
        return f"key `{key}` of DLedger in {where} has no meaning here; {REFUSED[key]}"
    for other, keys in tables.items():
        if key in keys:
            return f"{text}; it belongs in {other}"
    for name, keys in ((table, tables[table]), *tables.items()):
        near = difflib.get_close_matches(key, sorted(keys), n=1, cutoff=ALIKE)
        if near:
            place = "" if name == table else f" (in {name})"
            return f"{text}; did you mean {near[0]}{place}?"
    return text


def wrong_value(key: str, wanted: object, value: object) -> str:
    """Return what a value should be, if it is not of the wanted type; "" if that has no name."""
    origin = get_origin(wanted)
    if origin is UnionType:  # a table that may be missing
        wanted = next(one for one in get_args(wanted) if one is not NoneType)
    if origin is Literal:
        choices = ", ".join(repr(choice) for choice in get_args(wanted))
        return f"{key} is one of {choices}, not {_shown(value)}"
    if origin is list and get_args(wanted) == (str,):
        return f'{key} is a list of texts, as in ["text"], not {_shown(value)}'
    if origin is list:
        return _no_tables(key, value)
    if origin is dict or (isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)):
        return f"{key} is a table, begun by [{key}] in a line of its own, not {_shown(value)}"
    kind = _KINDS.get(wanted) if isinstance(wanted, type) else None
    return "" if kind is None else f"{key} is {kind}, not {_shown(value)}"


def _no_tables(key: str, value: object) -> str:
    given = f"by [{key}]" if isinstance(value, Mapping) else _shown(value)
    return f"{key} are tables, each begun by [[{key}]] in a line of its own, not {given}"


def _shown(value: object) -> str:
    """Return a value about as a file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a table"
    return repr(value) if isinstance(value, str | list) else str(value)


def wrong_value_in(
    reason: str, document: Mapping[str, object], types: Mapping[str, Mapping[str, object]]
) -> str:
    """Return what is wrong with a value of a file in its own words; `reason` if they have none.

    `reason` is the decoder's. `types`: for TOP, GROUPS and the other tables the types of all keys.
    """
    found = _WRONG.fullmatch(reason)
    if found is None:
        return _wrong_shape(reason, document) or reason
    in_groups, number, in_table, key = found.groups()
    table: object = document
    name, where = TOP, ""
    if in_groups:
        table = _group_at(document, int(number))
        name, where = GROUPS, _where_of(table, int(number))
    elif in_table:
        name = f"[{in_table}]"
        table, where = document[in_table], f"{name}: "
    value = table.get(key) if isinstance(table, Mapping) else None
    text = wrong_value(key, types[name].get(key), value)
    return f"{where}{text}" if text else reason


def _wrong_shape(reason: str, document: Mapping[str, object]) -> str:
    """Return what is wrong with a table of a file, or lacks in it; "": nothing that is known."""
    if found := _MISSING.fullmatch(reason):
        key, number, in_table = found.groups()
        if number is None:
            return f"{key} is missing in {TLS if in_table else TOP}"
        return f"{_where_of(_group_at(document, int(number)), int(number))}{key} is missing"
    if found := _NO_GROUP.fullmatch(reason):
        return _no_tables("groups", _group_at(document, int(found[1])))
    if found := _OF_NO_KIND.fullmatch(reason):
        table = document[found[1]]
        for key, value in table.items() if isinstance(table, Mapping) else ():
            if not isinstance(value, bool | int | float | str):
                kinds = "a number, true or false, or text in quotes"
                return f"[{found[1]}]: {key} is {kinds}, not {_shown(value)}"
    return ""


def _group_at(document: Mapping[str, object], number: int) -> object:
    groups = document["groups"]
    return groups[number] if isinstance(groups, list) else None


def _where_of(group: object, number: int) -> str:
    """Return how a message about a key of a group begins: with its name, if it has one."""
    name = group.get("group") if isinstance(group, Mapping) else None
    is_named = isinstance(name, str) and name
    return f"group {name}: " if is_named else f"{GROUPS}, number {number + 1}: "


def quotes_advice(reason: str) -> str:
    """Return what to do if a decoder says that a value is not valid TOML: quotes may be missing."""
    return '; strings need quotes: key = "text"' if reason.startswith(_QUOTES) else ""
