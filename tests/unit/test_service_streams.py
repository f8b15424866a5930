"""Ordered append streams: a refused block holds back those sent behind it."""

import pytest

from quorumlog.model.errors import OutOfOrderError, UnexpectedArgumentError
from quorumlog.service.streams import OrderedStreams


def test_blocks_in_order_are_accepted():
    streams = OrderedStreams(2)
    for sequence in range(3):
        streams.accept(1, sequence)
    streams.accept(2, 0)


def test_blocks_after_a_refused_one_are_refused_until_it_comes_again():
    streams = OrderedStreams(2)
    streams.accept(1, 0)
    streams.accept(1, 1)
    streams.refused(1, 0)
    with pytest.raises(OutOfOrderError, match="block 0 comes next, not 2"):
        streams.accept(1, 2)
    streams.accept(1, 0)
    streams.accept(1, 1)


def test_of_several_refused_blocks_the_first_comes_next():
    streams = OrderedStreams(2)
    for sequence in range(3):
        streams.accept(1, sequence)
    for sequence in range(3):
        streams.refused(1, sequence)
    with pytest.raises(OutOfOrderError, match="block 0"):
        streams.accept(1, 1)


def test_the_number_of_streams_is_bounded():
    streams = OrderedStreams(1)
    streams.accept(1, 0)
    with pytest.raises(UnexpectedArgumentError, match="more than 1"):
        streams.accept(2, 0)
