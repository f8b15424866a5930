"""Numbers with names: response codes, vote results, roles and entry kinds.

The values of `ResponseCode` are DLedger's (spec 60 section 2), so that logs and dashboards of both
systems read alike; codes from 600 on are ours.
"""

from enum import Enum, IntEnum
from typing import Final, Literal


class ResponseCode(IntEnum):
    """The outcome of a request, as carried on the wire."""

    UNKNOWN = -1
    SUCCESS = 200
    TIMEOUT = 300
    METADATA_ERROR = 301
    NETWORK_ERROR = 302
    UNSUPPORTED = 303
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_LEADER = 404
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_INDEX = 408
    INCONSISTENT_LEADER = 409
    INDEX_OUT_OF_RANGE = 410
    UNEXPECTED_ARGUMENT = 411
    REPEATED_REQUEST = 412
    REPEATED_PUSH = 413
    DISK_ERROR = 414
    DISK_FULL = 415
    TERM_NOT_READY = 416
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    INDEX_LESS_THAN_LOCAL_BEGIN = 419
    REQUEST_WITH_EMPTY_BODYS = 420
    PUSH_REQUEST_IS_FULL = 421
    NEWER_INSTALL_SNAPSHOT_REQUEST_EXIST = 422
    INTERNAL_ERROR = 500
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    ILLEGAL_MEMBER_STATE = 504
    LEADER_NOT_READY = 505
    LEADER_TRANSFERRING = 506
    LOAD_SNAPSHOT_ERROR = 507
    INSTALL_SNAPSHOT_ERROR = 508
    OUT_OF_ORDER = 600
    UNSUPPORTED_VERSION = 601
    CHANGE_IN_PROGRESS = 602
    MEMBER_NOT_READY = 603
    PRODUCER_FENCED = 604
    SEQUENCE_GAP = 605
    SEQUENCE_MISMATCH = 606
    UNKNOWN_PRODUCER = 607
    RESULTS_FORGOTTEN = 608
    TRANSACTION_ENDED = 609
    TRANSACTION_ABORTED = 610
    WRONG_CLUSTER = 611
    WAIT_ALL_ACK_TIMEOUT = 612
    HOOK_REFUSED = 620
    NOT_AUTHORIZED = 623
    GROUP_EXISTS = 630
    GROUP_DELETED = 631
    GROUP_REFUSED = 632
    UNKNOWN_PARTITION = 640
    UNKNOWN_TOPIC = 641
    TOPIC_EXISTS = 642
    INVALID_TOPIC = 643
    INVALID_PARTITIONS = 644
    INVALID_REPLICATION_FACTOR = 645
    INVALID_REPLICA_ASSIGNMENT = 646
    INVALID_CONFIG = 647
    CLUSTER_FULL = 648
    INVALID_TRANSACTION_STATE = 649
    NODE_STOPPING = 650
    CONSUMER_FENCED = 660
    TLS_REQUIRED = 670
    UNKNOWN_USER = 671
    USER_EXISTS = 672
    LOGIN_REQUIRED = 680
    LOGIN_REFUSED = 681
    LOGIN_BUSY = 682
    LOGIN_EXPIRED = 683


class WriteLevel(IntEnum):
    """When an append is answered, and so what its answer proves (JoyQueue's values, spec 50)."""

    ONE_WAY = 0
    """At once: the client waits for no answer."""
    RECEIVE = 1
    """The leader has given it a place in memory."""
    PERSISTENCE = 2
    """It is on the leader's disk."""
    REPLICATION = 3
    """It is on the disks of a majority: committed."""
    ALL = 4
    """It is committed, and on the disks of the leader and of all voters."""

    @property
    def word(self) -> Literal["one_way", "receive", "persistence", "replication", "all"]:
        """Its name for users."""
        return _LEVEL_WORDS[self]


_LEVEL_WORDS: Final[
    tuple[Literal["one_way", "receive", "persistence", "replication", "all"], ...]
] = ("one_way", "receive", "persistence", "replication", "all")


class VoteResult(IntEnum):
    """A voter's answer (spec 10 section 3.1)."""

    UNKNOWN = 0
    ACCEPT = 1
    REJECT_UNKNOWN_LEADER = 2
    REJECT_UNEXPECTED_LEADER = 3
    REJECT_EXPIRED_VOTE_TERM = 4
    REJECT_ALREADY_VOTED = 5
    REJECT_ALREADY_HAS_LEADER = 6
    REJECT_TERM_NOT_READY = 7
    REJECT_TERM_SMALL_THAN_LEDGER = 8
    REJECT_EXPIRED_LEDGER_TERM = 9
    REJECT_SMALL_LEDGER_END_INDEX = 10
    REJECT_TAKING_LEADERSHIP = 11
    ACCEPT_GIVING_UP_ENTRIES = 12
    """Ours: a voter that may not lead lets a log win that lacks what its own ends with."""

    @property
    def accepts(self) -> bool:
        """Whether it is a vote for the candidate."""
        return self in (VoteResult.ACCEPT, VoteResult.ACCEPT_GIVING_UP_ENTRIES)


class Role(Enum):
    """What a replica currently is in its group."""

    CANDIDATE = "CANDIDATE"
    FOLLOWER = "FOLLOWER"
    LEADER = "LEADER"


FAILED = "FAILED"
"""In the place of the role of a replica that cannot be opened."""


class PushType(IntEnum):
    """The steps of a dispatcher (spec 30 section 4)."""

    APPEND = 1
    COMMIT = 2
    COMPARE = 3
    TRUNCATE = 4


class Magic(IntEnum):
    """First field of an entry (spec 20 section 1)."""

    BLANK = -1
    NORMAL = 1
    NOOP = 2
    CONFIG_CHANGE = 3
