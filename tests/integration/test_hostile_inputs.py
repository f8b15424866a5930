"""Hostile inputs at all ports, with TLS and without: nothing dies, a client beside is served right.

A few hundred of what tests/torture/hostile.py sends by the hundred thousand, and a few plans of
tests/torture/tls_traffic.py.
"""

import argparse
import asyncio
import random

import pytest

from good_client import watched
from hostile_inputs import TAMPERINGS, doors, input_for
from torture.hostile import GOOD, Attacked, run_doors
from torture.tls_traffic import Ways, differences, plan_of

INPUTS = 30
"""At each door."""


@pytest.mark.processes
@pytest.mark.parametrize("has_tls", [True, False], ids=["TLS", "plain"])
def test_hostile_inputs_at_all_doors_end_no_node_and_hinder_nobody(tmp_path, has_tls):
    options = argparse.Namespace(inputs=INPUTS, seed=1, baseline=0, eager=True, at_once=INPUTS)
    attacked = Attacked(tmp_path / "c", 1, has_tls=has_tls)
    try:
        with watched(attacked.cluster, GOOD, attacked.files("good")) as watch:
            run_doors(attacked, doors(tls=(has_tls,)), options, watch)
        assert watch.verdict()
    finally:
        attacked.cluster.down()


@pytest.mark.parametrize("door", doors(), ids=str)
def test_a_seed_always_has_the_same_inputs_and_every_kind(door):
    """But for the random bytes of TLS itself in a ClientHello."""
    one, other = random.Random(5), random.Random(5)
    many = [input_for(one, door) for _ in range(400)]
    assert [made.kind for made in many] == [input_for(other, door).kind for _ in range(400)]
    assert {made.ending for made in many} == {"close", "reset", "shut", "wait"}
    tampered = {made.tampering for made in many} - {""}
    assert tampered == (set(TAMPERINGS) if door.has_tls else set())


@pytest.mark.parametrize("seed", range(3_000, 3_012))
def test_traffic_is_delivered_as_by_asyncios_own_tls(tmp_path, seed):
    async def play():
        ways, plan = Ways(tmp_path), plan_of(seed)
        ours, theirs = await ways.play(plan, is_ours=True), await ways.play(plan, is_ours=False)
        assert differences(plan, ours, theirs) == []

    asyncio.run(play())
