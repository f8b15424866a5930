"""Rules by which names are made of what certificates say about their owners.

The rules for principals have the grammar of Kafka's `ssl.principal.mapping.rules` (KIP-371); each
is an element of a list here. Patterns are RE2's, which are matched in time that grows with the
length of the text alone: whoever has a certificate has thought up its subject.
"""

import re
from typing import Final, NamedTuple

from quorumlog.model.errors import ConfigError
from quorumlog.model.patterns import Pattern, PatternError, compile_pattern
from quorumlog.model.wording import counted

RULES_MAX: Final = 32
RULE_LENGTH_MAX: Final = 256
MATCHED_LENGTH_MAX: Final = 1_024
"""Characters of a text that a rule is matched against; a longer one fits no rule."""
DEFAULT_RULE: Final = "DEFAULT"

_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")


def compile_bounded(key: str, text: str) -> Pattern:
    """Compile a pattern of a configuration whose matching takes a bounded time.

    Raises `ConfigError`, beginning with `key`, if it is no regular expression of RE2.
    """
    if len(text) > RULE_LENGTH_MAX:
        raise ConfigError(
            f"{key}: a rule has at most {RULE_LENGTH_MAX} characters, not {len(text)}"
        )
    try:
        return compile_pattern(text)
    except PatternError as error:
        raise ConfigError(f"{key}: {text!r} is no regular expression of RE2: {error}") from error


class PrincipalRule(NamedTuple):
    """One rule: what subject it is for, and the name that is made of it."""

    pattern: Pattern
    replacement: str
    case: str
    """`L`: the name in lower case, `U`: in upper case, empty: as it is."""

    def name_of(self, subject: str) -> str | None:
        """Return the name for a subject; None: the rule does not fit.

        A name is left as it is if one of its letters would become that of another name: `ı`, which
        is not the small letter of `I`.
        """
        if len(subject) > MATCHED_LENGTH_MAX:
            return None
        found = self.pattern.fullmatch(subject)
        if found is None:
            return None
        name = re.sub(r"\$(\d)", lambda number: found[int(number[1])] or "", self.replacement)
        if name.upper().lower() != name.lower():
            return name
        return {"L": name.lower(), "U": name.upper()}.get(self.case, name)


def parse_principal_rule(text: str) -> PrincipalRule:
    """Return the rule that a text is: `DEFAULT`, or `RULE:pattern/replacement/` with L or U.

    The pattern has to match the whole subject, as RFC 2253 writes it; `$1` in the replacement is
    the pattern's first group. A slash within either is written as a backslash and a slash. Raises
    `ConfigError`.
    """
    key = "[tls] principalRules"
    if text == DEFAULT_RULE:
        return PrincipalRule(compile_bounded(key, "(?s).*"), "$0", "")
    found = _RULE.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{key}: {text!r} is neither DEFAULT nor RULE:pattern/replacement/, such as "
            "RULE:CN=([^,]+),.*/$1/L"
        )
    pattern = compile_bounded(key, found[1].replace("\\/", "/"))
    replacement = found[2].replace("\\/", "/")
    groups = [int(number) for number in re.findall(r"\$(\d)", replacement)]
    if max(groups, default=0) > pattern.groups:
        raise ConfigError(
            f"{key}: {text!r}: the pattern has {counted(pattern.groups, 'group')} only"
        )
    return PrincipalRule(pattern, replacement, found[3])


class MemberRule(NamedTuple):
    """Says which member a certificate without our URI is of: group 1 of the pattern is its id."""

    pattern: Pattern

    def members_of(self, names: list[tuple[str, str]]) -> set[str]:
        """Return the members that the alternative names of a certificate stand for.

        A name is matched as its type and its value, such as `DNS:n0.log.example`.
        """
        texts = [f"{kind}:{value}" for kind, value in names]
        fitting = [
            self.pattern.fullmatch(text) for text in texts if len(text) <= MATCHED_LENGTH_MAX
        ]
        return {found[1] for found in fitting if found is not None and found[1]}


def parse_member_rule(text: str) -> MemberRule:
    """Return the rule that a text is: a regular expression with one group. Raises `ConfigError`."""
    pattern = compile_bounded("[tls] memberRule", text)
    if pattern.groups != 1:
        raise ConfigError(
            f"[tls] memberRule: {text!r} has {counted(pattern.groups, 'group')}; it needs "
            r"one, which is the member's id, such as DNS:([a-z0-9]+)\.log\.example"
        )
    return MemberRule(pattern)
