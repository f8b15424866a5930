"""Tests here run the simulator, most of them many times."""

import pytest

from seldom_collected import garbage_is_collected_seldom


@pytest.fixture(scope="module", autouse=True)
def _garbage_is_collected_seldom():
    with garbage_is_collected_seldom():
        yield
