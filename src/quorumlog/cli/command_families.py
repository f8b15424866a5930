"""All commands: finds words of Kafka's own tools among theirs, and says what to type instead."""

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup, TyperOption

from quorumlog.cli.kafka_words import COMMANDS, FAMILIES, TOOLS, hints_for


class _Asked(NamedTuple):
    """The command that was asked for, with its context, and the arguments that are left for it.

    `hints`: what to type in place of words that are no command here.
    """

    context: Any
    given: Sequence[str]
    hints: Sequence[str]


class AllCommands(TyperGroup):
    """Says what to type in place of words of Kafka's tools, a line for each.

    The help of its commands has paragraphs, whose lines are as long as the terminal is wide.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        _join_lines(self)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click. Ends the command with its usage for words that are no words of it.

        Not when a shell asks how the words may go on.
        """
        if not ctx.resilient_parsing:
            asked = _asked_for(ctx, args)
            if hints := [*asked.hints, *_hints_on_options(asked)]:
                asked.context.fail("\n".join(hints))
        return super().resolve_command(ctx, args)


def _join_lines(command: Any) -> None:
    """Make a line of each paragraph of the help of a command, and of those in it."""
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(one.split()) for one in paragraphs)
    for each in getattr(command, "commands", {}).values():
        _join_lines(each)


def _asked_for(context: Any, given: Sequence[str]) -> _Asked:
    """Follow the names of commands as far as they go, also those that Kafka's tools have."""
    hints: list[str] = []
    while given and isinstance(context.command, TyperGroup):
        family = context.command
        name, hint, left = given[0], "", given[1:]
        if name not in family.commands:
            name, hint, left = _kafka_word(context, given)
        if hint:
            hints.append(hint)
        if name not in family.commands:
            break
        context = typer.Context(family.commands[name], parent=context, info_name=name)
        given = left
    return _Asked(context, given, hints)


def _kafka_word(context: Any, given: Sequence[str]) -> tuple[str, str, Sequence[str]]:
    """Return the command that a word of Kafka's tools means, what to say of it, and what is left.

    Either may be empty: no command is meant; there is no such word.
    """
    family = _path_of(context)
    tool = given[0].removesuffix(".sh")
    if not family and tool in TOOLS:
        return "", f"there is no {given[0]} here; type {TOOLS[tool]}", given
    for number, word in enumerate(_words_in(given) if family in FAMILIES else ()):
        is_option, name = word.startswith("--"), word.removeprefix("--")
        meant = FAMILIES[family].get(name, name)
        if not is_option and number:
            continue  # it may be the value of an option
        if name in COMMANDS.get(family, {}):
            return "", f"there is no {word} here; {COMMANDS[family][name]}", given
        if meant in context.command.commands:
            said = f"there is no {word} here; type"
            if is_option:
                said = f"{word} is a command here, without dashes:"
            left = [*given[:number], *given[number + 1 :]]
            return meant, f"{said} {context.command_path} {meant}", left
    return "", "", given


def _hints_on_options(asked: _Asked) -> Iterator[str]:
    """Yield what to type in place of options that the command does not have."""
    if isinstance(asked.context.command, TyperGroup):
        return  # no command of it was named
    path = _path_of(asked.context)
    options = [one for one in asked.context.command.params if isinstance(one, TyperOption)]
    known = {name for one in options for name in (*one.opts, *one.secondary_opts)}
    taking = {name for one in options if not (one.is_flag or one.count) for name in one.opts}
    for option in dict.fromkeys(_words_in(asked.given, taking)):
        if option in known:
            continue
        for hint in hints_for(path):
            if option in hint.options and (not hint.needs or hint.needs in known):
                command = asked.context.command_path
                yield f"there is no {option} here; {hint.text.format(command=command)}"
                break


def _path_of(context: Any) -> str:
    """Return the words after the program's own name."""
    return str(context.command_path).partition(" ")[2]


def _words_in(arguments: Iterable[str], taking: Container[str] = ()) -> Iterator[str]:
    """Yield arguments before one that ends the options, and options without their values.

    `taking`: options whose value may be the next argument.
    """
    left = iter(arguments)
    for one in left:
        if one == "--":
            return
        name, equals, _ = one.partition("=")
        yield name
        if name in taking and not equals:
            next(left, None)
