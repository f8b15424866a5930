"""An answer that is lost after the commit: the batch comes again and is stored once."""

import pytest

from kafka_load import PRODUCERS
from kafka_lost_answers import broker_that_loses_answers, check_stored_once


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with broker_that_loses_answers(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.mark.parametrize("name", PRODUCERS)
def test_b2_a_batch_whose_answer_was_lost_is_stored_once(broker, name):
    check_stored_once(broker, name, PRODUCERS[name])
