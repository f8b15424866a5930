"""ACLs, passwords and quotas, as Kafka's admin clients describe and change them.

They are for those who may describe and alter the cluster; where nobody is judged, everybody may.
Groups of quorumlog are no resources of Kafka: ACLs about them are neither
shown nor removed here.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from quorumlog.auth.acls import (
    ANY_HOST,
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    host_text,
    new_acl,
)
from quorumlog.auth.permits import Right
from quorumlog.auth.principals import (
    check_password_counts,
    new_user_name,
    principal,
    user_name,
)
from quorumlog.auth.quotas import CLIENT_ID, IP, USER, QuotaEntity, check_quota, checked_entity
from quorumlog.auth.verifiers import verifier_of_salted
from quorumlog.auth.view import NO_SECURITY, SecurityView
from quorumlog.kafka.codec import encode_response
from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode, error_of
from quorumlog.machine.cluster.commands import (
    AlterAcls,
    AlterQuotas,
    AlterUsers,
    QuotaChange,
    UserChange,
)
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RequestError, UnexpectedArgumentError, error_for

WAIT_MS: Final = 30_000
"""How long the leader of `__cluster` is waited for; requests do not say it."""
AT_ONCE: Final = 400
"""Changes in one command, which has at most 1 MiB."""
DESCRIBED_MAX: Final = 20_000
"""ACLs in one answer, which has some 60 bytes for each."""
SCRAM_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""Kafka's numbers (KIP-554)."""
_NUMBERS: Final = {name: number for number, name in SCRAM_MECHANISMS.items()}
_OF_NONE: Final = frozenset({6, 7})
"""Kafka's types of resources that there are no ACLs for here: delegation tokens, users."""
_EXACT, _DEFAULT, _SPECIFIED = range(3)
"""How a filter of quotas compares a name (KIP-546)."""
_Outcome: TypeAlias = tuple[ErrorCode, str]
_DONE: Final[_Outcome] = (ErrorCode.NONE, "")
T = TypeVar("T")


async def _known(context: RequestContext) -> SecurityView:
    """Return all that was committed before the request came. Raises `RequestError`."""
    if not await context.broker.barrier(WAIT_MS):
        raise error_for(ResponseCode.TIMEOUT, "__cluster has no leader that answers")
    view: SecurityView = context.broker.security
    return view


def _refused(context: RequestContext, operation: Operation) -> _Outcome | None:
    """Return why the client may not do something with the cluster; None: it may."""
    refused = context.rights.refused(Right(operation, ResourceType.CLUSTER, CLUSTER_NAME))
    if refused is not None:
        context.note_error(refused.error, refused.text)
    return refused


def _asker(context: RequestContext) -> tuple[str, str]:
    """Return who asks, and from where: for the audit log."""
    return context.principal, context.address


def _outcome(code: ResponseCode, text: str) -> _Outcome:
    return (ErrorCode.NONE, "") if code is ResponseCode.SUCCESS else (error_of(code), text)


def _fields(outcome: _Outcome) -> dict[str, Any]:
    error, text = outcome
    return {"error_code": error, "error_message": text or None}


async def _altered(
    context: RequestContext, command: AlterAcls | AlterQuotas | AlterUsers, count: int
) -> list[_Outcome]:
    """Have a number of changes made; return what became of each."""
    try:
        result = await context.broker.execute(command, WAIT_MS)
    except RequestError as failure:
        return [(error_of(failure.code), str(failure))] * count
    return [_outcome(code, text) for code, text in result.outcomes]


def _in_parts(given: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(given), AT_ONCE):
        yield given[first : first + AT_ONCE]


def _note(context: RequestContext, outcomes: Iterable[_Outcome]) -> None:
    for error, text in outcomes:
        if error is not ErrorCode.NONE:
            context.note_error(error, text)


# -- ACLs -----------------------------------------------------------------------------------------


def _filter_of(asked: Any) -> AclFilter | None:
    """Return the filter of a request; None: nothing here is of its type.

    Raises `UnexpectedArgumentError`.
    """
    if asked.resource_type_filter in _OF_NONE:
        return None
    try:
        found = AclFilter(
            ResourceType(asked.resource_type_filter),
            asked.resource_name_filter,
            PatternType(asked.pattern_type_filter),
            _as_kept(principal, asked.principal_filter),
            _as_kept(host_text, asked.host_filter),
            Operation(asked.operation),
            Permission(asked.permission_type),
        )
    except ValueError as error:
        raise UnexpectedArgumentError(f"a filter of ACLs: {error}") from error
    return found


def _as_kept(kept: Any, text: str | None) -> str | None:
    """Return a text in the form in which it is kept, or as it is: it fits nothing then."""
    try:
        return None if text is None else str(kept(text))
    except UnexpectedArgumentError:
        return text


def _meant(view: SecurityView, asked: AclFilter | None) -> list[Acl]:
    if asked is None:
        return []
    return [one for one in view.acls_of(asked) if one.resource_type.is_kafkas]


async def handle_describe_acls(context: RequestContext, request: Any) -> Answer:
    """Describe the ACLs that a filter means, by the resources that they are about."""
    try:
        asked = _filter_of(request)
        view = await _known(context)
    except RequestError as failure:
        outcome = error_of(failure.code), str(failure)
        _note(context, [outcome])
        return {**_fields(outcome), "resources": []}
    return await context.on_thread(lambda: _described(context, view, asked))


def _described(context: RequestContext, view: SecurityView, asked: AclFilter | None) -> bytes:
    found = _meant(view, asked)
    outcome = _DONE
    if len(found) > DESCRIBED_MAX:
        text = f"the filter means {len(found)} ACLs, more than {DESCRIBED_MAX}: narrow it"
        outcome, found = (ErrorCode.POLICY_VIOLATION, text), []
    by_resource: dict[tuple[Any, ...], list[Acl]] = {}
    for one in found:
        by_resource.setdefault((one.resource_type, one.name, one.pattern), []).append(one)
    resources = [
        {
            "resource_type": kind,
            "resource_name": name,
            "pattern_type": pattern,
            "acls": [
                {
                    "principal": one.principal,
                    "host": one.host,
                    "operation": one.operation,
                    "permission_type": one.permission,
                }
                for one in acls
            ],
        }
        for (kind, name, pattern), acls in by_resource.items()
    ]
    return encode_response(context.header, {**_fields(outcome), "resources": resources})


def _alter_acls(
    context: RequestContext, added: Sequence[Acl] = (), removed: Sequence[Acl] = ()
) -> AlterAcls:
    return AlterAcls(*_asker(context), list(added), list(removed))


async def handle_create_acls(context: RequestContext, request: Any) -> Answer:
    """Add ACLs; those that cannot be added do not hinder others."""
    refused = _refused(context, Operation.ALTER)
    if refused is not None:
        return {"results": [_fields(refused)] * len(request.creations)}
    outcomes: list[_Outcome] = [_DONE] * len(request.creations)
    acls: list[tuple[int, Acl]] = []
    async for place, one in context.in_turns(enumerate(request.creations)):
        try:
            acls.append((place, _created(one)))
        except (UnexpectedArgumentError, ValueError) as error:
            outcomes[place] = ErrorCode.INVALID_REQUEST, str(error)
    for some in _in_parts(acls):
        found = await _altered(
            context, _alter_acls(context, added=[acl for _, acl in some]), len(some)
        )
        for (place, _), outcome in zip(some, found, strict=True):
            outcomes[place] = outcome
    _note(context, outcomes)
    return {"results": [_fields(one) for one in outcomes]}


def _created(one: Any) -> Acl:
    """Return an ACL to be added. Raises `UnexpectedArgumentError` or `ValueError`."""
    if one.resource_type in _OF_NONE:
        text = "there are no delegation tokens here, and no rights on users"
        raise UnexpectedArgumentError(text)
    return new_acl(
        Acl(
            ResourceType(one.resource_type),
            one.resource_name,
            PatternType(one.resource_pattern_type),
            one.principal,
            one.host or ANY_HOST,
            Operation(one.operation),
            Permission(one.permission_type),
        )
    )


async def handle_delete_acls(context: RequestContext, request: Any) -> Answer:
    """Remove the ACLs that filters mean, as they are known when the request comes."""
    failed = _refused(context, Operation.ALTER)
    view = NO_SECURITY
    if failed is None:
        try:
            view = await _known(context)
        except RequestError as failure:
            failed = error_of(failure.code), str(failure)
            _note(context, [failed])
    if failed is not None:
        told = {**_fields(failed), "matching_acls": []}
        return {"filter_results": [told for _ in request.filters]}
    results = []
    left = DESCRIBED_MAX
    async for asked in context.in_turns(request.filters):
        found: list[Acl]
        try:
            meant = partial(_meant, view, _filter_of(asked))
        except UnexpectedArgumentError as error:
            outcome, found = (ErrorCode.INVALID_REQUEST, str(error)), []
        else:
            found = await context.on_thread(meant)  # 0.1 s if a cluster has all ACLs that it may
            outcome, left = _DONE, left - len(found)
            if left < 0:
                text = f"the filters mean more than {DESCRIBED_MAX} ACLs: narrow them"
                outcome, found = (ErrorCode.POLICY_VIOLATION, text), []
        _note(context, [outcome])
        results.append({**_fields(outcome), "matching_acls": await _removed(context, found)})
    return {"filter_results": results}


async def _removed(context: RequestContext, acls: Sequence[Acl]) -> list[dict[str, Any]]:
    """Remove ACLs; return what is told of each."""
    told = []
    for some in _in_parts(acls):
        outcomes = await _altered(context, _alter_acls(context, removed=some), len(some))
        _note(context, outcomes)
        told += [
            {
                **_fields(outcome),
                "resource_type": one.resource_type,
                "resource_name": one.name,
                "pattern_type": one.pattern,
                "principal": one.principal,
                "host": one.host,
                "operation": one.operation,
                "permission_type": one.permission,
            }
            for one, outcome in zip(some, outcomes, strict=True)
        ]
    return told


# -- passwords ------------------------------------------------------------------------------------


async def handle_describe_user_scram_credentials(context: RequestContext, request: Any) -> Answer:
    """Describe by which mechanisms users can log in; nothing of what passwords are checked by."""
    try:
        view = await _known(context)
    except RequestError as failure:
        outcome = error_of(failure.code), str(failure)
        _note(context, [outcome])
        return {**_fields(outcome), "results": []}
    asked = Counter(one.name for one in request.users or ())
    names = asked or Counter(dict.fromkeys(sorted(view.users), 1))
    results = []
    async for name, count in context.in_turns(names.items()):
        known = view.users.get(_as_kept(user_name, name) or "", {})
        outcome = _DONE
        if count > 1:
            outcome = ErrorCode.DUPLICATE_RESOURCE, f"user {name!r} is named more than once"
        elif not known:
            outcome = ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {name!r}"
        infos = [
            {"mechanism": _NUMBERS[mechanism], "iterations": verifier.iterations}
            for mechanism, verifier in known.items()
            if outcome is _DONE
        ]
        results.append({"user": name, **_fields(outcome), "credential_infos": infos})
    return {**_fields(_DONE), "results": results}


async def handle_alter_user_scram_credentials(context: RequestContext, request: Any) -> Answer:
    """Change and remove passwords: all that is asked of one user, or nothing (KIP-554).

    What arrives is a salted password; only the keys that are derived of it are kept.
    """
    by_user: dict[str, list[Any]] = {}
    for one in (*request.deletions, *request.upsertions):
        by_user.setdefault(one.name, []).append(one)
    refused = _refused(context, Operation.ALTER)
    if refused is not None:
        return {"results": [{"user": name, **_fields(refused)} for name in by_user]}
    deleted = {id(one) for one in request.deletions}
    security = context.config.security
    super_users = () if security is None else security.super_users
    outcomes: dict[str, _Outcome] = {}
    changes: list[tuple[str, UserChange]] = []
    async for name, asked in context.in_turns(by_user.items()):
        found = _user_change(name, asked, deleted, super_users)
        if isinstance(found, UserChange):
            changes.append((name, found))
        else:
            outcomes[name] = found
    for some in _in_parts(changes):
        command = AlterUsers(*_asker(context), [change for _, change in some])
        done = await _altered(context, command, len(some))
        outcomes |= {name: outcome for (name, _), outcome in zip(some, done, strict=True)}
    _note(context, outcomes.values())
    return {"results": [{"user": name, **_fields(outcomes[name])} for name in by_user]}


def _user_change(
    name: str, asked: Sequence[Any], deleted: Collection[int], super_users: Collection[str]
) -> UserChange | _Outcome:
    """Return the change of a user, or why there is none."""
    numbers = [one.mechanism for one in asked]
    unknown = [number for number in numbers if number not in SCRAM_MECHANISMS]
    if unknown:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"there is no mechanism {unknown[0]}"
    if len(set(numbers)) < len(numbers):
        return ErrorCode.DUPLICATE_RESOURCE, f"a mechanism of user {name!r} is changed twice"
    verifiers = {}
    try:
        are_all_deleted = all(id(one) in deleted for one in asked)
        kept = user_name(name) if are_all_deleted else new_user_name(name)
        if not are_all_deleted:
            check_password_counts(kept, super_users)
        for one in asked:
            mechanism = SCRAM_MECHANISMS[one.mechanism]
            verifiers[mechanism] = (
                None
                if id(one) in deleted
                else verifier_of_salted(one.salted_password, mechanism, one.salt, one.iterations)
            )
    except UnexpectedArgumentError as error:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)
    return UserChange(kept, verifiers)


# -- quotas ---------------------------------------------------------------------------------------


async def handle_describe_client_quotas(context: RequestContext, request: Any) -> Answer:
    """Describe the quotas of the entities that a filter means."""
    kinds = Counter(one.entity_type for one in request.components)
    try:
        _check_components(kinds, request.components)
        view = await _known(context)
    except RequestError as failure:
        outcome = error_of(failure.code), str(failure)
        _note(context, [outcome])
        return {**_fields(outcome), "entries": None}
    entries = [
        {
            "entity": _entity_fields(entity),
            "values": [{"key": key, "value": value} for key, value in sorted(values.items())],
        }
        async for entity, values in context.in_turns(view.quotas.items())
        if _has(request.components, entity, strict=request.strict)
    ]
    return {**_fields(_DONE), "entries": entries}


def _check_components(kinds: Mapping[str, int], components: Iterable[Any]) -> None:
    for kind, count in kinds.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise UnexpectedArgumentError(f"quotas are not for entities of type {kind!a}")
        if count > 1:
            raise UnexpectedArgumentError(f"the filter names the type {kind} more than once")
    for one in components:
        if one.match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise UnexpectedArgumentError(f"there is no type of match {one.match_type}")
        if (one.match_type == _EXACT) == (one.match is None):
            raise UnexpectedArgumentError("a filter has a name if that is to be matched, only then")


def _has(components: Sequence[Any], entity: QuotaEntity, *, strict: bool) -> bool:
    """Whether a filter means an entity. A strict one has nothing that the filter does not name."""
    parts = dict(entity)
    if strict and len(parts) != len(components):
        return False
    for one in components:
        if one.entity_type not in parts:
            return False
        name = parts[one.entity_type]
        if one.match_type == _EXACT and name != one.match:
            return False
        if one.match_type == _DEFAULT and name is not None:
            return False
    return True


def _entity_fields(entity: Iterable[tuple[str, str | None]]) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity]


async def handle_alter_client_quotas(context: RequestContext, request: Any) -> Answer:
    """Set and remove quotas; what is wrong for one entity does not hinder others."""
    refused = _refused(context, Operation.ALTER_CONFIGS)
    outcomes: list[_Outcome] = [refused or _DONE] * len(request.entries)
    changes: list[tuple[int, QuotaChange]] = []
    seen: set[QuotaEntity] = set()
    async for place, entry in context.in_turns(enumerate(request.entries)):
        if refused is not None:
            break
        try:
            found = _quota_changes(entry, seen)
        except UnexpectedArgumentError as error:
            outcomes[place] = ErrorCode.INVALID_REQUEST, str(error)
        else:
            changes += [(place, one) for one in found]
    is_asked = refused is None and not request.validate_only
    for some in _in_parts(changes if is_asked else ()):
        command = AlterQuotas(*_asker(context), [change for _, change in some])
        done = await _altered(context, command, len(some))
        for (place, _), outcome in zip(some, done, strict=True):
            if outcomes[place] == _DONE:
                outcomes[place] = outcome
    if refused is None:
        _note(context, outcomes)
    return {
        "entries": [
            {
                **_fields(outcome),
                "entity": _entity_fields(
                    (one.entity_type, one.entity_name) for one in entry.entity
                ),
            }
            for entry, outcome in zip(request.entries, outcomes, strict=True)
        ]
    }


def _parts_of(entry: Any) -> list[tuple[str, str | None]]:
    return [(one.entity_type, one.entity_name) for one in entry.entity]


def _quota_changes(entry: Any, seen: set[QuotaEntity]) -> list[QuotaChange]:
    """Return the changes of one entity. Raises `UnexpectedArgumentError`."""
    entity = checked_entity(_parts_of(entry))
    if entity in seen:
        raise UnexpectedArgumentError("the request names this entity more than once")
    seen.add(entity)
    found = []
    for one in entry.ops:
        value = None if one.remove else one.value
        check_quota(entity, one.key, value)
        found.append(QuotaChange(entity, one.key, value))
    if len({one.key for one in found}) < len(found):
        raise UnexpectedArgumentError("the request names a quota of this entity more than once")
    return found
