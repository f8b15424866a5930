"""A change of a group's settings, beside others that are made at the same time (decision 0040).

The settings are a register that is changed as in Paxos. A majority of the members promises to take
none of a lower revision from a client any more, unless it has newer ones than those that the
change was made from. Then they are sent. So each change contains all those that were done before,
whoever made them; a member that missed one learns it from the others.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from quorumlog.client.group_answers import (
    NOTHING_IS_CHANGED,
    GroupChange,
    NodeGroups,
    best_known,
    changed,
    has_majority,
    hosting,
    members_of,
    require_majority,
    said,
)
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import known_keys
from quorumlog.model.config_keys import unknown_keys
from quorumlog.model.errors import (
    Outcome,
    RequestError,
    UnexpectedArgumentError,
    error_for,
)
from quorumlog.model.group_records import Settings, next_revision
from quorumlog.model.messages.groups import AlterGroupRequest, AlterGroupResponse

Answers: TypeAlias = dict[str, AlterGroupResponse | RequestError]
Ask: TypeAlias = Callable[[Mapping[str, str], AlterGroupRequest], Awaitable[Answers]]
"""Asks nodes, given as node id → address, at the same time."""
_PARTLY_CHANGED: Final = "some members may have the new settings"


class Alteration:
    """One change, which is attempted until nobody else comes in between.

    `identity` says which of several groups of that name; empty: there is one. `is_in_doubt`: some
    members may have settings of an attempt that did not succeed.
    """

    def __init__(
        self, name: str, settings: Settings, unset: Sequence[str], ask: Ask, identity: str = ""
    ) -> None:
        self._name = name
        self._identity = identity
        self._settings = settings
        self._unset = unset
        self._ask = ask
        self._revision = -1
        self.is_in_doubt = False

    async def attempt(self, nodes: Sequence[NodeGroups]) -> GroupChange | None:
        """Change the settings that nodes have; None: others change them, too. Start again then.

        Raises `RequestError` if that would be of no use.
        """
        found = hosting(nodes, self._name, self._identity)
        known, newest = best_known(found), max(found.values(), key=lambda info: info.revision)
        wanted = self._wanted(newest.settings)
        self._revision = next_revision(max(self._revision, newest.revision), wanted)
        members = members_of(known, nodes)
        request = AlterGroupRequest(
            group=self._name,
            identity=max(info.identity for info in found.values()),  # some may not know it yet
            settings=wanted,
            revision=self._revision,
            prepares=True,
            replaces=newest.revision,
        )
        promises = await self._ask(members, request)
        so_far = _PARTLY_CHANGED if self.is_in_doubt else NOTHING_IS_CHANGED
        _check_settings(promises, so_far)
        if not has_majority(known, promises):
            if _has_rival(promises):
                return None
            require_majority(known, promises, so_far)
        self.is_in_doubt = True
        answers = await self._ask(members, msgspec.structs.replace(request, prepares=False))
        if not has_majority(known, answers):
            if _has_rival(answers):
                return None
            raise self._partly_made(answers)
        taken = [one for one in answers.values() if isinstance(one, AlterGroupResponse)]
        touched = {*self._settings, *self._unset}
        waiting = {key for one in taken for key in one.after_restart}
        return changed(answers, sorted(waiting & touched))

    def _wanted(self, present: Settings) -> Settings:
        wanted = {**present, **self._settings}
        for key in self._unset:
            if key not in present and self._revision < 0:
                text = f"{key} of group {self._name!r} was not set while nodes ran"
                document = {"groups": [{key: "", "group": self._name}]}
                why = unknown_keys(document, known_keys()) or f"{text}; nothing to unset"
                raise UnexpectedArgumentError(why)
            wanted.pop(key, None)
        return wanted

    def _partly_made(self, answers: Answers) -> RequestError:
        failed = {node: one for node, one in answers.items() if isinstance(one, RequestError)}
        code = next(iter(failed.values())).code
        return error_for(
            code, f"no majority of group {self._name!r} has the new settings: {said(failed)}"
        )

    def given_up(self) -> RequestError:
        """Return the error for a change that others came in between of again and again."""
        text = f"others change the settings of group {self._name!r} all the time; try again"
        error = error_for(ResponseCode.CHANGE_IN_PROGRESS, text)
        if self.is_in_doubt:
            error.outcome = Outcome.UNKNOWN
        return error


def _is_rival(answer: AlterGroupResponse | RequestError) -> bool:
    return isinstance(answer, RequestError) and answer.code is ResponseCode.CHANGE_IN_PROGRESS


def _has_rival(answers: Answers) -> bool:
    """Whether a member says that somebody else changes the group, too."""
    return any(map(_is_rival, answers.values()))


def _check_settings(answers: Answers, so_far: str) -> None:
    """Raise `RequestError` if a member finds the settings wrong: it could never take them.

    One that cannot take anything now, as its disk is full or it has no replica, learns them later.
    """
    for node, answer in answers.items():
        if isinstance(answer, UnexpectedArgumentError):
            raise error_for(answer.code, f"{node}: {answer}; {so_far}")
