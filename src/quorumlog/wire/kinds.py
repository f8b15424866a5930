"""Which number a message has in a frame. Numbers are for ever: never change or reuse one."""

from quorumlog.model import message as m
from quorumlog.model.messages import admin as am
from quorumlog.model.messages import machine as mm
from quorumlog.model.messages import transactions as tm

MESSAGE_OF_KIND: dict[int, type[m.Message]] = {
    1: m.Hello,
    2: m.Response,
    3: m.Introduction,
    10: m.VoteRequest,
    11: m.VoteResponse,
    12: m.HeartBeatRequest,
    13: m.HeartBeatResponse,
    14: m.PushRequest,
    15: m.PushResponse,
    16: m.RepairRequest,
    17: m.RepairResponse,
    18: m.TimeoutNowRequest,
    19: m.ReadIndexRequest,
    20: m.ReadIndexResponse,
    21: m.NodeHeartBeat,
    22: m.NodeHeartBeatResponse,
    23: m.HeartBeats,
    24: m.InstallSnapshotRequest,
    25: m.InstallSnapshotResponse,
    26: m.SnapshotChunkRequest,
    27: m.SnapshotChunk,
    28: m.SnapshotOfferRequest,
    29: m.StateDigest,
    30: m.MetadataRequest,
    31: m.MetadataResponse,
    32: m.AppendRequest,
    33: m.AppendResponse,
    34: m.FetchRequest,
    35: m.FetchResponse,
    36: m.StatusRequest,
    37: m.StatusResponse,
    38: am.TransferRequest,
    39: am.ChangeMembersRequest,
    40: am.HistoryRequest,
    41: am.HistoryResponse,
    42: mm.QueryRequest,
    43: mm.QueryResponse,
    44: mm.SnapshotRequest,
    45: mm.SnapshotResponse,
    46: tm.TransactionalRequest,
    47: tm.TransactionalResponse,
    48: tm.PositionReport,
    49: m.OfferQuery,
    50: m.OfferResponse,
    51: m.GroupIdentity,
    52: m.DigestQuery,
}
KIND_OF_MESSAGE: dict[type[m.Message], int] = {
    message: kind for kind, message in MESSAGE_OF_KIND.items()
}


def _kinds_of(*bases: type[m.Message]) -> frozenset[int]:
    return frozenset(kind for kind, made in MESSAGE_OF_KIND.items() if issubclass(made, bases))


HELLO_KINDS = _kinds_of(m.Hello)
"""All that may come before the handshake is done."""
CLIENT_KINDS = _kinds_of(m.Request)
"""What clients send."""
PEER_KINDS = _kinds_of(m.PeerMessage, m.NodeMessage) | {KIND_OF_MESSAGE[m.Response]}
"""What peers send on the connections that they make; a response: it could not read something."""
