"""What people are told to do about damage, in one place, since wrong advice loses data."""

EMPTYING_IS_SAFE_WHEN = (
    "Removing this replica's directory, to have it filled again, is safe only while every other "
    "member of the group runs without lag (docs/guarantees.md)"
)
