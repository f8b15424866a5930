"""What somebody is told who types words of Kafka's own tools."""

import re

import pytest
import typer.main

from quorumlog.cli.app import app
from quorumlog.cli.kafka_words import COMMANDS, FAMILIES, HINTS, TOOLS
from quorumlog.cli.main import main

SERVERS, BOOTSTRAP = "--servers", "--bootstrap-server"
ROOT = typer.main.get_command(app)
NAMED = re.compile(r"quorumlog((?: [a-z-]+)+)")
"""A command in a hint."""


@pytest.fixture
def told(capsys):
    def told(*arguments):
        """Return what is said of a wrong command line, as one line."""
        assert main(list(arguments)) == 2
        said = " ".join(capsys.readouterr().err.replace("│", " ").split())
        return said.replace("command- line", "command-line")

    return told


def command_at(path):
    """Return the command of these words, and what is left of them."""
    found, left = ROOT, path.split()
    while left and left[0] in getattr(found, "commands", ()):
        found, left = found.commands[left[0]], left[1:]
    return found, left


def options_of(command):
    """Return the options of a command, or of all commands of a family."""
    own = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return own.union(*map(options_of, getattr(command, "commands", {}).values()))


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["topic", "--create", "--topic", "t"], "quorumlog topic create"),
        (["topic", "--bootstrap-server", "127.0.0.1:9092", "--list"], "quorumlog topic list"),
        (["consumer-group", "--reset-offsets"], "quorumlog consumer-group reset"),
        (["transaction", "--list"], "quorumlog transaction list"),
        (["broker-config", "--alter"], "quorumlog broker-config alter"),
    ],
)
def test_what_is_an_option_of_kafkas_tools_is_told_to_be_a_command(arguments, command, told):
    assert f"is a command here, without dashes: {command}" in told(*arguments)


@pytest.mark.parametrize(
    ("command", "given", "instead"),
    [
        (["topic", "list"], SERVERS, BOOTSTRAP),
        (["topic", "create", "t"], "-s", BOOTSTRAP),
        (["consumer-group", "describe", "g"], SERVERS, BOOTSTRAP),
        (["transaction", "list"], SERVERS, BOOTSTRAP),
        (["broker-config", "describe"], SERVERS, BOOTSTRAP),
        (["status"], BOOTSTRAP, SERVERS),
        (["members", "add", "n3", "127.0.0.1:7104"], BOOTSTRAP, SERVERS),
        (["append"], "-b", SERVERS),
    ],
)
@pytest.mark.parametrize("form", ["apart", "together"])
def test_who_gives_the_addresses_for_other_commands_is_told_which_option_it_is(
    command, given, instead, form, told
):
    address = "127.0.0.1:9092"
    is_apart = form == "apart" or not given.startswith("--")
    said = told(*command, *([given, address] if is_apart else [f"{given}={address}"]))
    assert f"there is no {given} here; quorumlog {command[0]}" in said
    assert f"give {instead} HOST:PORT" in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topic create --topic t", "are arguments: quorumlog topic create TOPIC..."),
        ("topic list --topic=t", "for one, type quorumlog topic describe TOPIC"),
        ("topic list --command-config f", "clients need no file: leave it out"),
        ("topic create t --zookeeper localhost:2181", "give --bootstrap-server HOST:PORT"),
        ("consumer-group reset-offsets g", "type quorumlog consumer-group reset"),
        ("consumer-group describe --group g", "quorumlog consumer-group describe GROUP..."),
        ("consumer-group reset g --to-latest --execute", "unless --dry-run is given: leave it out"),
        ("consumer-group reset g --to-current", "give --shift-by 0"),
        ("consumer-group describe g --to-earliest", "to quorumlog consumer-group reset GROUP"),
        ("consumer-group --delete-offsets --group g", "offsets of single topics are deleted by"),
        ("transaction describe --transactional-id a", "quorumlog transaction describe ID..."),
        ("broker-config alter --entity-type topics", "quorumlog topic alter TOPIC"),
        ("kafka-topics.sh --list", "there is no kafka-topics.sh here; type quorumlog topic"),
        ("tail --from-beginning", "give --from earliest"),
        ("append --property parse.key=true", "an entry has a body only"),
    ],
)
def test_a_word_of_kafkas_tools_is_answered_with_what_to_type(line, said, told):
    assert said in told(*line.split())


def test_each_word_of_a_whole_line_for_kafkas_tool_has_its_own_line(told):
    line = (
        "consumer-group --bootstrap-server 127.0.0.1:9092 --group g --reset-offsets --all-topics "
        "--to-earliest --execute"
    )
    said = told(*line.split())
    assert said.startswith("Usage: quorumlog consumer-group reset [OPTIONS]")
    assert "--reset-offsets is a command here" in said
    assert re.findall("there is no (--[a-z-]+) here", said) == [
        "--group",
        "--all-topics",
        "--execute",
    ]


def test_what_comes_after_two_dashes_is_no_option(told):
    said = told("topic", "describe", "--bootstrap-server", "x", "--", "--servers")
    assert "there is no --servers" not in said


def test_hints_are_for_commands_that_there_are_and_for_options_that_they_lack():
    for path, hints in HINTS.items():
        command, left = command_at(path)
        assert not left, path
        for hint in hints if path else ():
            assert options_of(command).isdisjoint(hint.options) or path in FAMILIES, path
    assert not any(command_at(path)[1] for path in [*FAMILIES, *COMMANDS])
    assert all(command_at(f"{path} {name}")[1] for path in COMMANDS for name in COMMANDS[path])


def test_what_hints_say_to_type_exists():
    every = options_of(ROOT)
    hints = [(path, one.text) for path, some in HINTS.items() for one in some]
    hints += [(path, text) for path, words in COMMANDS.items() for text in words.values()]
    hints += [("", text) for text in TOOLS.values()]
    for path, text in hints:
        typed = text.replace("{command}", f"quorumlog {path}") if path else text
        for found in NAMED.finditer(typed):
            assert command_at(found[1])[0] is not ROOT, text
        for option in re.findall(r"--[a-z-]+", text):
            known = options_of(command_at(path)[0]) if path in HINTS and path else every
            assert option in known, f"{path}: {text}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["consumer-group", "reset", "g", "--topic", "--all-topics"],
        ["topic", "create", "t", "--config", "--topic"],
    ],
)
def test_the_value_of_an_option_is_no_word_of_kafkas_tools(arguments, told):
    assert "type" not in told(*arguments, "--bootstrap-server", "127.0.0.1")


@pytest.mark.parametrize("words", [["topic", "--list"], ["topic", "create", "--topic", "x"]])
def test_completion_goes_on_after_a_word_of_kafkas_tools(words):
    context = ROOT.make_context("quorumlog", list(words), resilient_parsing=True)
    assert ROOT.resolve_command(context, list(words))[0] == "topic"
