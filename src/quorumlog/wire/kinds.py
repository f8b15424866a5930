"""The number of each message kind in a frame. A number must never be changed or reused."""

from quorumlog.model.messages import (
    admin,
    base,
    client,
    cluster,
    consumers,
    groups,
    login,
    machine,
    peer,
    security,
    transactions,
)

MESSAGE_OF_KIND: dict[int, type[base.Message]] = {
    1: base.Hello,
    2: base.Response,
    3: peer.Introduction,
    4: login.Authenticate,
    5: login.Authenticated,
    6: client.Throttled,
    10: peer.VoteRequest,
    11: peer.VoteResponse,
    12: peer.HeartBeatRequest,
    13: peer.HeartBeatResponse,
    14: peer.PushRequest,
    15: peer.PushResponse,
    16: peer.RepairRequest,
    17: peer.RepairResponse,
    18: peer.TimeoutNowRequest,
    19: peer.ReadIndexRequest,
    20: peer.ReadIndexResponse,
    21: peer.NodeHeartBeat,
    22: peer.NodeHeartBeatResponse,
    23: peer.HeartBeats,
    24: peer.InstallSnapshotRequest,
    25: peer.InstallSnapshotResponse,
    26: peer.SnapshotChunkRequest,
    27: peer.SnapshotChunk,
    28: peer.SnapshotOfferRequest,
    29: peer.StateDigest,
    30: client.MetadataRequest,
    31: client.MetadataResponse,
    32: client.AppendRequest,
    33: client.AppendResponse,
    34: client.FetchRequest,
    35: client.FetchResponse,
    36: client.StatusRequest,
    37: client.StatusResponse,
    38: admin.TransferRequest,
    39: admin.ChangeMembersRequest,
    40: admin.HistoryRequest,
    41: admin.HistoryResponse,
    42: machine.QueryRequest,
    43: machine.QueryResponse,
    44: machine.SnapshotRequest,
    45: machine.SnapshotResponse,
    46: transactions.TransactionalRequest,
    47: transactions.TransactionalResponse,
    49: peer.OfferQuery,
    50: peer.OfferResponse,
    51: client.GroupIdentity,
    52: peer.DigestQuery,
    53: peer.TableDigestQuery,
    54: peer.TableDigest,
    55: peer.PeerTurn,
    56: base.Responses,
    60: groups.CreateGroupRequest,
    61: groups.DeleteGroupRequest,
    62: groups.AlterGroupRequest,
    63: groups.AlterGroupResponse,
    64: groups.ListGroupsRequest,
    65: groups.ListGroupsResponse,
    66: groups.GroupsQuery,
    67: groups.GroupsAnswer,
    68: groups.GroupInvitation,
    70: client.WatchLeaderRequest,
    72: cluster.Leading,
    73: cluster.ClusterCommand,
    74: cluster.ClusterAnswer,
    80: consumers.ConsumerHeartbeatRequest,
    81: consumers.ConsumerHeartbeatResponse,
    82: consumers.CommitPositionsRequest,
    83: consumers.PositionsRequest,
    84: consumers.PositionsResponse,
    90: security.UsersRequest,
    91: security.UsersResponse,
    92: security.AlterUsersRequest,
    93: security.AclsRequest,
    94: security.AclsResponse,
    95: security.AlterAclsRequest,
    96: security.CheckAclRequest,
    97: security.CheckAclResponse,
    98: security.QuotasRequest,
    99: security.QuotasResponse,
    100: security.AlterQuotasRequest,
    101: security.AlteredResponse,
    102: security.CheckSecurityRequest,
    103: security.CheckSecurityResponse,
}
"""48 was a consumer's report of its position."""
KIND_OF_MESSAGE: dict[type[base.Message], int] = {
    message: kind for kind, message in MESSAGE_OF_KIND.items()
}


def _kinds_of(*bases: type[base.Message]) -> frozenset[int]:
    return frozenset(kind for kind, made in MESSAGE_OF_KIND.items() if issubclass(made, bases))


HELLO_KINDS = _kinds_of(base.Hello)
"""All that may come before the handshake is done."""
UNVERSIONED_KINDS = HELLO_KINDS | {KIND_OF_MESSAGE[base.Response]}
"""What is said before the two sides have agreed on a version: always in the first one."""
LOGIN_KINDS = _kinds_of(login.Authenticate)
"""All that may come from a client that has to log in, before it has."""
CLIENT_KINDS = _kinds_of(base.Request) | LOGIN_KINDS
"""What clients send."""
UNATTACHED_KINDS = CLIENT_KINDS - {
    KIND_OF_MESSAGE[client.AppendRequest],
    KIND_OF_MESSAGE[machine.QueryRequest],
}
"""Requests that have nothing attached: what waits for an answer must not hold any bytes."""
PEER_KINDS = _kinds_of(peer.PeerMessage, peer.NodeMessage) | {KIND_OF_MESSAGE[base.Response]}
"""What peers send on the connections that they make; a response: it could not read something."""
JOINED_KINDS = _kinds_of(peer.PeerTurn, base.Responses)
"""Messages that carry others (`quorumlog.wire.joined`)."""
PEER_PART_KINDS = _kinds_of(peer.PeerMessage)
"""What a `PeerTurn` carries."""
RESPONSE_KINDS = _kinds_of(base.Response)
"""What `Responses` carry."""
