"""Whom a certificate is of, and how principals are made of what it says."""

import pytest

from certificates import CLUSTER_ID, OTHER_CLUSTER_ID
from quorumlog.auth.certificates import (
    ANONYMOUS,
    Certified,
    certified_of,
    check_member,
    principal_of,
    subject_of,
)
from quorumlog.model.errors import ConfigError, RemoteProtocolError
from quorumlog.model.name_rules import (
    MATCHED_LENGTH_MAX,
    RULE_LENGTH_MAX,
    parse_member_rule,
    parse_principal_rule,
)
from quorumlog.model.security_config import SecurityConfig

SUBJECT = (
    (("countryName", "DE"),),
    (("organizationName", "Example, Inc."),),
    (("organizationalUnitName", "Data"), ("userId", "7")),
    (("commonName", "Alice"),),
)


def certificate(*names, subject=SUBJECT):
    return {"subject": subject, "subjectAltName": names, "serialNumber": "0A"}


def uri(text):
    return ("URI", f"quorumlog://{text}")


def test_a_uri_names_a_node_or_a_user():
    node = certified_of(certificate(("DNS", "h0"), uri(f"{CLUSTER_ID}/node/n0")))
    assert node == Certified("node", "n0", CLUSTER_ID, "0A")
    assert node.principal == "Node:n0"
    user = certified_of(certificate(uri(f"{CLUSTER_ID}/user/caf%C3%A9@example.com")))
    assert user.principal == "User:café@example.com"


def test_a_common_name_or_an_address_names_nobody():
    subject = ((("commonName", "n0"),),)
    assert certified_of(certificate(("DNS", "n0"), subject=subject)) is None
    assert certified_of(certificate(uri(CLUSTER_ID), ("URI", "spiffe://x/node/n0"))) is None
    assert certified_of({}) is None


@pytest.mark.parametrize(
    "text",
    [
        f"{CLUSTER_ID}/admin/x",
        f"{CLUSTER_ID}/node/",
        f"{CLUSTER_ID}/node/n0/user/alice",
        f"{CLUSTER_ID}/user/*",
        f"{CLUSTER_ID}/user/ANONYMOUS",
        f"{CLUSTER_ID}/user/%20",
        f"{CLUSTER_ID}/user/%00root",
        f"{CLUSTER_ID}/user/%FF",
        f"{CLUSTER_ID}/user/{'a' * 129}",
        f"{CLUSTER_ID}/user/%EF%AC%81",  # a ligature: not in NFKC
        f"{CLUSTER_ID[:-1]}/node/n0",
        "/node/n0",
        f"{CLUSTER_ID}/node/n0\n",
    ],
)
def test_a_malformed_uri_of_ours_is_refused_and_not_ignored(text):
    with pytest.raises(RemoteProtocolError, match="URI"):
        certified_of(certificate(uri(text)))


def test_a_certificate_names_one_owner():
    with pytest.raises(RemoteProtocolError, match="more than one"):
        certified_of(certificate(uri(f"{CLUSTER_ID}/node/n0"), uri(f"{CLUSTER_ID}/user/n0")))
    same = certificate(uri(f"{CLUSTER_ID}/node/n0"), uri(f"{CLUSTER_ID}/node/n0"))
    assert certified_of(same).name == "n0"


def test_a_rule_says_which_member_a_certificate_is_of():
    rule = parse_member_rule(r"DNS:([a-z0-9]+)\.log\.example")
    found = certified_of(certificate(("DNS", "n0.log.example"), ("DNS", "www.example")), rule)
    assert found == Certified("node", "n0", "", "0A")
    assert certified_of(certificate(("DNS", "n0.log.example.org")), rule) is None
    assert certified_of(certificate(("IP Address", "n0.log.example")), rule) is None
    with pytest.raises(RemoteProtocolError, match="more than one"):
        certified_of(certificate(("DNS", "n0.log.example"), ("DNS", "n1.log.example")), rule)


def test_subjects_are_written_as_rfc_2253_has_them():
    assert subject_of(certificate()) == "CN=Alice,OU=Data+UID=7,O=Example\\, Inc.,C=DE"
    odd = ((("commonName", " #a "),), (("title", 'x"'),))
    assert subject_of(certificate(subject=odd)) == 'title=x\\",CN=\\ #a\\ '


def test_a_principal_is_the_subject_unless_a_rule_or_our_uri_says_otherwise():
    plain = certificate(("DNS", "client"))
    assert principal_of(plain, None) == f"User:{subject_of(plain)}"
    rules = [
        parse_principal_rule("RULE:CN=(.*?),O=Nobody.*/$1/"),
        parse_principal_rule("RULE:CN=(.*?),OU=([^,+]*).*/$1@$2/L"),
        parse_principal_rule("DEFAULT"),
    ]
    assert principal_of(plain, None, rules) == "User:alice@data"
    assert principal_of(plain, None, rules[:1]) == ANONYMOUS
    assert principal_of(plain, None, rules[2:]) == f"User:{subject_of(plain)}"
    nobody = parse_principal_rule("RULE:.*/ANONYMOUS/")
    with pytest.raises(RemoteProtocolError, match="nor reserved"):
        principal_of(plain, None, [nobody])
    user = certificate(uri(f"{CLUSTER_ID}/user/bob"))
    assert principal_of(user, certified_of(user), rules) == "User:bob"
    assert principal_of({}, None) == ANONYMOUS


def test_the_parts_of_a_rule_may_have_slashes():
    assert parse_principal_rule(r"RULE:CN=a\/(b),.*/$1\/x/U").name_of("CN=a/b,O=c") == "B/X"


def test_a_long_subject_fits_no_rule():
    assert parse_principal_rule("DEFAULT").name_of("a" * (MATCHED_LENGTH_MAX + 1)) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("CN=(.*)", "neither DEFAULT nor RULE"),
        ("RULE:CN=(.*)/$1", "neither DEFAULT nor RULE"),
        ("RULE:CN=(.*/$1/", "no regular expression"),
        ("RULE:CN=(.*)/$2/", "has 1 group only"),
        ("RULE:CN=(?=a)(.*)/$1/", "no regular expression of RE2: invalid perl operator"),
        (r"RULE:CN=(.*),OU=\1/$1/", "no regular expression of RE2: invalid escape sequence"),
        (f"RULE:{'a' * (RULE_LENGTH_MAX + 1)}/x/", "at most 256"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(text, why):
    with pytest.raises(ConfigError, match=why):
        parse_principal_rule(text)


@pytest.mark.parametrize(
    "text", [r"RULE:CN=((?:[^,]|\\.)+),OU=data,.*/$1/", "RULE:CN=((?:(?:.+)+)*),OU=data/$1/"]
)
def test_no_subject_takes_a_rule_for_ever(text):
    rule = parse_principal_rule(text)
    odd = {"subject": ((("organizationalUnitName", "x"),), (("commonName", "+" * 400),))}
    assert rule.name_of(subject_of(odd)) is None  # of 2 to the 400 ways
    assert parse_member_rule("DNS:((?:a|a)+)").members_of([("DNS", "a" * 999 + "b")]) == set()


def test_a_letter_that_only_looks_like_another_is_not_made_that_one():
    lower, upper = parse_principal_rule("RULE:CN=(.*)/$1/L"), parse_principal_rule("RULE:.*/$0/U")
    assert lower.name_of("CN=Kate") == "kate"
    for rule in (lower, upper, parse_principal_rule("RULE:(?i)CN=kate/svc/")):
        with pytest.raises(RemoteProtocolError, match="NFKC"):
            principal_of(named("\N{KELVIN SIGN}ate"), None, [rule])
    assert upper.name_of("admin") == "ADMIN"
    assert upper.name_of("adm\N{LATIN SMALL LETTER DOTLESS I}n") != "ADMIN"


def test_a_uri_of_ours_in_capital_letters_is_refused():
    for one in (f"{OTHER_CLUSTER_ID}/user/admin", f"{CLUSTER_ID}/user/admin"):
        with pytest.raises(RemoteProtocolError, match="is not quorumlog://CLUSTER-ID"):
            certified_of(certificate(("URI", f"QUORUMLOG://{one}")))


@pytest.mark.parametrize("text", ["DNS:n.*", "DNS:(a)(b)"])
def test_a_member_rule_has_one_group(text):
    with pytest.raises(ConfigError, match="it needs one"):
        parse_member_rule(text)


@pytest.mark.parametrize(
    ("certified", "why"),
    [
        (None, f"quorumlog://{CLUSTER_ID}/node/n1"),
        (Certified("user", "alice", CLUSTER_ID, ""), "a user's certificate .alice. was shown"),
        (Certified("node", "n2", CLUSTER_ID, ""), "node n2 was shown for node n1"),
        (Certified("node", "n1", OTHER_CLUSTER_ID, ""), f"{OTHER_CLUSTER_ID}, this is"),
        (Certified("node", "n1", "", ""), "none"),
    ],
)
def test_only_the_certificate_of_a_member_of_this_cluster_is_that_members(certified, why):
    with pytest.raises(RemoteProtocolError, match=why):
        check_member(certified, "n1", CLUSTER_ID)
    check_member(Certified("node", "n1", CLUSTER_ID, ""), "n1", CLUSTER_ID)
    with pytest.raises(RemoteProtocolError, match="memberRule makes n1, and to be of an authority"):
        check_member(None, "n1", "")


def named(name):
    return {"subject": ((("commonName", name),),)}


def test_a_principal_of_a_certificate_is_one_that_acls_can_name():
    assert principal_of(named("n\u00e9e"), None) == "User:CN=n\u00e9e"
    rules = [parse_principal_rule("RULE:CN=(.*)/$1/")]
    assert principal_of(named("n\u00e9e"), None, rules) == "User:n\u00e9e"
    assert principal_of(named("x" * 128), None, rules) == "User:" + "x" * 128
    alike = ("\ufb01ne", "\uff41dmin", "\u212aate", "ne\u0301e")  # fine, admin, Kate, n\u00e9e
    for name in ("x" * 129, "*", *alike):
        with pytest.raises(RemoteProtocolError, match="no name of a user"):
            principal_of(named(name), None, rules)
    for name in ("x" * 200, "a\nb"):
        with pytest.raises(RemoteProtocolError, match="principalRules"):
            principal_of(named(name), None)


def test_a_super_user_is_written_as_names_are_compared():
    with pytest.raises(ConfigError, match="write 'User:fine'"):
        SecurityConfig(super_users=["User:\ufb01ne"])
