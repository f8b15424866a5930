"""What a listener makes of the progress of a query."""

import io
import json
from types import SimpleNamespace

from prometheus_client import CollectorRegistry

from quorumlog.spark.listener import GroupLag, LagListener, lags_of


def offset(**groups):
    return json.dumps({group: {"index": index, "term": 1} for group, index in groups.items()})


def progress(end, latest, name="q", batch_id=3):
    sources = [SimpleNamespace(endOffset=end, latestOffset=latest)]
    found = SimpleNamespace(id="id", runId="run", name=name, batchId=batch_id, sources=sources)
    return SimpleNamespace(progress=found)


def test_lag_is_what_is_there_less_what_was_read_in_each_group():
    lags = lags_of("q", offset(a=10, b=5), offset(a=25, b=5, c=9))
    assert lags == [GroupLag("q", "a", 10, 15), GroupLag("q", "b", 5, 0)]


def test_other_sources_are_left_alone():
    for end, latest in ((None, None), ("", ""), ("7", "9"), ('{"t":{"0":5}}', '{"t":{"0":9}}')):
        assert lags_of("q", end, latest) == []


def test_it_is_printed_and_kept_as_a_metric_until_the_query_ends():
    output, registry = io.StringIO(), CollectorRegistry()
    listener = LagListener(output=output, registry=registry)
    listener.onQueryProgress(progress(offset(g=10), offset(g=25)))
    assert output.getvalue() == "q: batch 3, g read up to 9, 15 entries behind\n"
    labels = {"query": "q", "group": "g"}
    assert registry.get_sample_value("quorumlog_query_entries_behind", labels) == 15
    assert registry.get_sample_value("quorumlog_query_position", labels) == 10
    listener.onQueryTerminated(SimpleNamespace(runId="run"))
    assert registry.get_sample_value("quorumlog_query_entries_behind", labels) is None


def test_a_query_without_a_name_goes_by_its_id():
    output = io.StringIO()
    listener = LagListener(output=output, registry=CollectorRegistry())
    listener.onQueryProgress(progress(offset(g=1), offset(g=1), name=None))
    assert output.getvalue().startswith("id: batch 3")
