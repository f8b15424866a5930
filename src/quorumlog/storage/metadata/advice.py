"""Advice to operators about damage, all in one place, since wrong advice loses data."""

EMPTYING_IS_SAFE_WHEN = (
    "Removing this replica's directory, to have it filled again, is safe only while every other "
    "member of the group runs without lag (docs/guarantees.md)"
)
ONLY_MEMBER = (
    "If it is the only member of its group, quorumlog store settle says how to go on without them"
)
REPAIR = (
    "A running replica asks its peers for what is damaged; without them: quorumlog store repair "
    "DIR --from DIR2, with a copy of another replica's directory"
)
RESTORE = (
    "Restore the file from a copy, or from another replica's directory; quorumlog store verify DIR "
    "tells what else is wrong"
)
