"""The certificates of a local cluster that speaks TLS (`quorumlog cluster up --secure`)."""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from quorumlog.local.tls import ADMIN

DAYS: Final = 3_650
"""A local cluster is for tests and first steps: nobody looks after its certificates."""
HOSTS: Final = ("127.0.0.1", "localhost")


def make_missing(directory: Path, node_ids: Sequence[str]) -> None:
    """Make what is missing of an authority, of certificates of nodes, and of that of admin.

    So a command that was killed can be run again. Raises `PkiError`.
    """
    from quorumlog.pki.authority import AuthorityDirectory  # noqa: PLC0415  (loaded when used)
    from quorumlog.pki.files import pair_in  # noqa: PLC0415
    from quorumlog.pki.names import new_cluster_id, node_subject, user_subject  # noqa: PLC0415

    authority = AuthorityDirectory(directory, datetime.now(UTC), secrets.token_bytes)
    missing = [
        name
        for name in (*node_ids, ADMIN)
        if not all(path.exists() for path in pair_in(directory, name))
    ]
    if not authority.pair.certificate.exists():
        cluster_id = new_cluster_id(secrets.token_bytes)
        authority.make(cluster_id, "ec-p256", DAYS, force=True)
        missing = [*node_ids, ADMIN]  # what another authority signed is of no use
    if not missing:
        return
    cluster_id = authority.cluster_id()
    for name in missing:
        is_node = name in node_ids
        subject = (
            node_subject(name, cluster_id, HOSTS) if is_node else user_subject(name, cluster_id)
        )
        authority.issue(subject, pair_in(directory, name), "ec-p256", DAYS, force=True)
