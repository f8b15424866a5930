"""Scenes of Raft, to be read: commands, `----`, and what happened.

A scene begins with `add-nodes COUNT [founded] [option=number …]`; `raft_stage` explains the
commands. Lines that begin with `#` are for readers. After every step the whole group is checked, as
in other tests. `pytest tests/transcripts --rewrite-transcripts` writes down what happens now.
"""

from pathlib import Path

import pytest

from raft_stage import Stage

SCENES = sorted(Path(__file__).parent.glob("*.txt"))


def played(text):
    """Return the text with what happens now as what is expected."""
    stage, blocks = None, []
    for block in text.strip("\n").split("\n\n"):
        commands = block.partition("----")[0].strip("\n").splitlines()
        happened = []
        for command in commands:
            words = command.split()
            if command.startswith("#"):
                continue
            if words[0] == "add-nodes":
                options = dict(word.split("=") for word in words if "=" in word)
                numbers = {name: int(value) for name, value in options.items()}
                stage = Stage(int(words[1]), founded="founded" in words, **numbers)
            else:
                happened += stage.play(words)
        if any(not command.startswith("#") for command in commands):
            blocks.append("\n".join([*commands, "----", *happened]))
        else:
            blocks.append("\n".join(commands))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCENES, ids=lambda path: path.stem)
def test_a_scene_goes_as_written(path, request):
    written = path.read_text()
    happened = played(written)
    if request.config.getoption("--rewrite-transcripts", default=False):
        path.write_text(happened)
    else:
        assert happened.splitlines() == written.splitlines()


def test_there_are_scenes():
    assert len(SCENES) >= 12
