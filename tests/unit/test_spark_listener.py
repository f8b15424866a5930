"""What a listener makes of the progress of a query."""

import io
import json
from types import SimpleNamespace

from prometheus_client import CollectorRegistry

from quorumlog.model.errors import NoLeaderError
from quorumlog.spark.source.listener import (
    REPORT_PAUSE_S,
    GroupLag,
    LagListener,
    PositionListener,
    lags_of,
)


def offset(**groups):
    return json.dumps({group: {"index": index, "term": 1} for group, index in groups.items()})


def progress(end, latest, name="q", batch_id=3, run="run"):
    sources = [SimpleNamespace(endOffset=end, latestOffset=latest)]
    found = SimpleNamespace(id="id", runId=run, name=name, batchId=batch_id, sources=sources)
    return SimpleNamespace(progress=found)


def latest_of(reader="", servers="h:1", **groups):
    """Latest offsets as our source puts them into progress."""
    source = {"servers": servers, "reader": reader}
    places = {group: {"index": index, "term": -1, **source} for group, index in groups.items()}
    return json.dumps(places)


class Log:
    """A cluster that takes reports; `is_down`: one that does not answer."""

    def __init__(self):
        self.reports = []
        self.failing = set()
        self.now = 0.0

    def connect(self, servers, timeout_ms):
        def report(group, reader, index):
            if group in self.failing:
                raise NoLeaderError("nobody answers")
            self.reports.append((servers, group, reader, index))

        return SimpleNamespace(report=report)

    def listener(self, **options):
        return PositionListener(connect=self.connect, now_s=lambda: self.now, **options)


def terminated(run="run"):
    return SimpleNamespace(runId=run)


def test_lag_is_what_is_there_less_what_was_read_in_each_group():
    lags = lags_of("q", offset(a=10, b=5), offset(a=25, b=5, c=9))
    assert lags == [GroupLag("q", "a", 10, 15), GroupLag("q", "b", 5, 0)]


def test_lag_in_topics_is_counted_in_offsets_of_each_partition_and_not_reported():
    end, latest = json.dumps({"t": {"0": 5, "1": 7}}), json.dumps({"t": {"0": 9, "1": 7, "2": 3}})
    assert lags_of("q", end, latest) == [
        GroupLag("q", "t-0", 5, 4, is_of_topic=True),
        GroupLag("q", "t-1", 7, 0, is_of_topic=True),
    ]


def test_other_sources_are_ignored():
    for end, latest in ((None, None), ("", ""), ("7", "9"), ('{"t":[5]}', '{"t":[9]}')):
        assert lags_of("q", end, latest) == []


def test_it_is_printed_and_kept_as_a_metric_until_the_query_ends():
    output, registry = io.StringIO(), CollectorRegistry()
    listener = LagListener(output=output, registry=registry)
    listener.onQueryProgress(progress(offset(g=10), offset(g=25)))
    assert output.getvalue() == "q: batch 3, g read up to 9, lag 15\n"
    labels = {"query": "q", "group": "g"}
    assert registry.get_sample_value("quorumlog_query_entries_behind", labels) == 15
    assert registry.get_sample_value("quorumlog_query_position", labels) == 10
    listener.onQueryTerminated(SimpleNamespace(runId="run"))
    assert registry.get_sample_value("quorumlog_query_entries_behind", labels) is None


def test_a_query_that_has_read_nothing_yet_says_so():
    output = io.StringIO()
    listener = LagListener(output=output, registry=CollectorRegistry())
    listener.onQueryProgress(progress(offset(g=0), offset(g=1081)))
    assert output.getvalue() == "q: batch 3, nothing of g read yet, lag 1,081\n"


def test_a_query_without_a_name_goes_by_its_id():
    output = io.StringIO()
    listener = LagListener(output=output, registry=CollectorRegistry())
    listener.onQueryProgress(progress(offset(g=1), offset(g=1), name=None))
    assert output.getvalue().startswith("id: batch 3")


def test_the_end_of_each_batch_is_reported_by_the_name_of_the_query_to_its_own_servers():
    log = Log()
    listener = log.listener()
    listener.onQueryProgress(progress(offset(g=10), latest_of(g=25)))
    listener.onQueryProgress(progress(offset(g=25), latest_of(g=25)))
    listener.onQueryTerminated(terminated())
    assert log.reports == [("h:1", "g", "q", 10), ("h:1", "g", "q", 25)]


def test_runs_of_a_query_without_a_name_are_the_same_reader():
    log = Log()
    listener = log.listener()
    for run, index in (("first run", 3), ("second run", 7)):
        end, latest = offset(g=index), latest_of(g=9)
        listener.onQueryProgress(progress(end, latest, name=None, run=run))
        listener.onQueryTerminated(terminated(run))
    assert log.reports == [("h:1", "g", "id", 3), ("h:1", "g", "id", 7)]


def test_the_option_and_the_argument_win_and_names_are_cut():
    log = Log()
    listener = log.listener(servers="other:1")
    listener.onQueryProgress(progress(offset(g=3), latest_of(reader="mine", g=9)))
    listener.onQueryProgress(progress(offset(g=4), latest_of(g=9), name="n" * 300))
    assert log.reports == [("other:1", "g", "mine", 3), ("other:1", "g", "n" * 200, 4)]


def test_what_could_not_be_reported_is_when_the_query_ends():
    log = Log()
    listener = log.listener()
    log.failing = {"a"}
    for index in range(1, 4):
        listener.onQueryProgress(progress(offset(a=index, b=index), latest_of(a=9, b=9)))
    assert log.reports == [], "Spark waits for each report: the first one that fails is enough"
    log.now += REPORT_PAUSE_S
    listener.onQueryProgress(progress(offset(a=4, b=4), latest_of(a=9, b=9)))
    assert log.reports == [("h:1", "b", "q", 4)], "one group holds up no other"
    log.failing = set()
    listener.onQueryTerminated(terminated())
    assert log.reports[1:] == [("h:1", "a", "q", 4)]
    assert not listener._unreported
    assert not listener._not_before_s


def test_sources_of_others_are_not_reported():
    log = Log()
    log.listener().onQueryProgress(progress('{"t":{"0":5}}', '{"t":{"0":9}}'))
    log.listener().onQueryProgress(progress(offset(g=5), offset(g=9)))  # no servers are known
    assert log.reports == []
