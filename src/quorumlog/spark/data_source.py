"""The data source `quorumlog`: groups, and topics.

spark.read.format("quorumlog").option("servers", "h:p,h:p,h:p").option("group", "g").load()
spark.readStream.format("quorumlog")…
frame.write.format("quorumlog").option(…).mode("append").save()
frame.writeStream.format("quorumlog").option(…).start()

Topics are read with the options of Spark's Kafka source:

spark.read.format("quorumlog").option("kafka.bootstrap.servers", "h:p").option("subscribe", "t")
"""

from typing import ClassVar

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.spark.carried import WHY_NOT_CARRIED, can_carry
from quorumlog.spark.sink.options import (
    WriteOptions,
    check_columns,
    parse_write_options,
    writes_topics,
)
from quorumlog.spark.sink.writer import LogStreamWriter, LogWriter
from quorumlog.spark.source.batch import FilteringLogReader, LogReader
from quorumlog.spark.source.clusters import PLAN_TIMEOUT_MS, check_cluster
from quorumlog.spark.source.options import parse_options
from quorumlog.spark.source.pushdown import offers_filters
from quorumlog.spark.source.schema import default_schema, wanted_columns
from quorumlog.spark.source.stream import LogStreamReader, RefusedStreamReader
from quorumlog.spark.store.source import QuorumlogStoreSource
from quorumlog.spark.topics.options import TopicOptions, are_of_topics, parse_topic_options
from quorumlog.spark.topics.schema import COLUMNS as TOPIC_COLUMNS
from quorumlog.spark.topics.schema import topic_schema


class QuorumlogSource(DataSource):
    """Reads and writes groups and topics; options are the `KNOWN` of the modules named options."""

    may_carry: ClassVar[bool] = False
    """Whether tasks may carry credentials; the class is all that Spark's planner knows of it."""

    def __init__(self, options: dict[str, str]) -> None:
        """Raises `UnexpectedArgumentError` if tasks are to carry credentials and may not."""
        super().__init__(options)
        wanted = next((options[name] for name in options if name.lower() == "credentials"), "")
        if wanted.strip().lower() == "driver" and not self.may_carry:
            raise UnexpectedArgumentError(
                f"option credentials=driver: {WHY_NOT_CARRIED}. Sessions that "
                "quorumlog.spark.session() returns allow it then; for others call "
                "quorumlog.spark.register(spark)"
            )

    @classmethod
    def name(cls) -> str:
        """Return the name used in `format(...)`."""
        return "quorumlog"

    def schema(self) -> StructType:
        """Return the columns without a user's `.schema(...)`."""
        if are_of_topics(self.options):
            topic_options = parse_topic_options(dict(self.options))
            return topic_schema(include_headers=topic_options.include_headers)
        options = parse_options(dict(self.options))
        return default_schema(
            include_headers=options.include_headers, include_group=options.has_several_groups
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns that the schema names."""
        if are_of_topics(self.options):
            return _topic_reader(
                parse_topic_options(dict(self.options)).for_batch(),
                wanted_columns(schema, TOPIC_COLUMNS),
            )
        options = parse_options(dict(self.options)).for_batch()
        kind = FilteringLogReader if options.pushes_conditions and offers_filters() else LogReader
        return kind(options, wanted_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's)
        """Return a reader of the columns that the schema names, for a stream."""
        try:
            if are_of_topics(self.options):
                return _topic_stream_reader(
                    parse_topic_options(dict(self.options)).for_stream(),
                    wanted_columns(schema, TOPIC_COLUMNS),
                )
            options = parse_options(dict(self.options)).for_stream()
            columns = wanted_columns(schema)
        except UnexpectedArgumentError as error:
            return RefusedStreamReader(error)
        return LogStreamReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of a batch."""
        _refuse(overwrite=overwrite)
        if writes_topics(self.options, schema):
            # it loads Kafka's clients, for which nobody else waits
            from quorumlog.spark.sink.topics.writer import batch_writer  # noqa: PLC0415

            return batch_writer(dict(self.options), schema)
        options = self._write_options(schema)
        if options.identity is None:  # else it is a batch of a stream, which rides out an outage
            check_cluster(
                options.servers, options.group, min(PLAN_TIMEOUT_MS, options.delivery_timeout_ms)
            )
        return LogWriter(options)

    def streamWriter(  # noqa: N802  (Spark's)
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return a writer of a streaming query's batches."""
        _refuse(overwrite=overwrite)
        if writes_topics(self.options, schema):
            from quorumlog.spark.sink.topics.writer import stream_writer  # noqa: PLC0415

            return stream_writer(dict(self.options), schema)
        return LogStreamWriter(self._write_options(schema).for_stream())

    def _write_options(self, schema: StructType) -> WriteOptions:
        options = parse_write_options(dict(self.options))
        check_columns(schema, options)
        return options


class CarryingSource(QuorumlogSource):
    """The same for a session whose tasks may carry credentials: see `carried.can_carry`."""

    may_carry: ClassVar[bool] = True


def register(spark: SparkSession) -> None:
    """Register both data sources in a session, and allow `credentials=driver` if it is safe there.

    It is in local mode, and where Spark encrypts what it sends between its machines (`ENCRYPTED`).
    `session()` has done it.
    """
    spark.dataSource.register(CarryingSource if can_carry(spark) else QuorumlogSource)
    spark.dataSource.register(QuorumlogStoreSource)


# What readers of topics need is loaded only for these: Kafka's schemas take 0.1 s and 16 MiB.


def _topic_reader(options: TopicOptions, columns: tuple[str, ...]) -> DataSourceReader:
    from quorumlog.spark.topics.batch import FilteringTopicReader, TopicReader  # noqa: PLC0415

    kind = FilteringTopicReader if options.pushes_conditions and offers_filters() else TopicReader
    return kind(options, columns)


def _topic_stream_reader(options: TopicOptions, columns: tuple[str, ...]) -> DataSourceStreamReader:
    from quorumlog.spark.topics.stream import TopicStreamReader  # noqa: PLC0415

    return TopicStreamReader(options, columns)


def _refuse(*, overwrite: bool) -> None:
    if overwrite:
        raise UnexpectedArgumentError(
            "a log cannot be overwritten, only added to: use mode('append'), of a stream "
            "outputMode('append') or 'update'"
        )
