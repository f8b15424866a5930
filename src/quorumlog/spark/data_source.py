"""The data source `quorumlog`.

spark.read.format("quorumlog").option("servers", "h:p,h:p,h:p").option("group", "g").load()
spark.readStream.format("quorumlog")…
frame.write.format("quorumlog").option(…).mode("append").save()
frame.writeStream.format("quorumlog").option(…).start()
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.spark.sink.options import WriteOptions, check_columns, parse_write_options
from quorumlog.spark.sink.writer import LogStreamWriter, LogWriter
from quorumlog.spark.source.batch import FilteringLogReader, LogReader
from quorumlog.spark.source.clusters import PLAN_TIMEOUT_MS, check_cluster
from quorumlog.spark.source.options import parse_options
from quorumlog.spark.source.pushdown import offers_filters
from quorumlog.spark.source.schema import default_schema, wanted_columns
from quorumlog.spark.source.stream import LogStreamReader, RefusedStreamReader


class QuorumlogSource(DataSource):
    """Reads and writes groups; options are the `KNOWN` of `options` and `sink_options`."""

    @classmethod
    def name(cls) -> str:
        """Return the name used in `format(...)`."""
        return "quorumlog"

    def schema(self) -> StructType:
        """Return the columns without a user's `.schema(...)`."""
        options = parse_options(dict(self.options))
        return default_schema(
            include_headers=options.include_headers, include_group=options.has_several_groups
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns that the schema names."""
        options = parse_options(dict(self.options)).for_batch()
        kind = FilteringLogReader if options.pushes_conditions and offers_filters() else LogReader
        return kind(options, wanted_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's)
        """Return a reader of the columns that the schema names, for a stream."""
        try:
            options = parse_options(dict(self.options)).for_stream()
            columns = wanted_columns(schema)
        except UnexpectedArgumentError as error:
            return RefusedStreamReader(error)
        return LogStreamReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of a batch."""
        options = self._write_options(schema, overwrite=overwrite)
        if options.identity is None:  # else it is a batch of a stream, which rides out an outage
            check_cluster(
                options.servers, options.group, min(PLAN_TIMEOUT_MS, options.delivery_timeout_ms)
            )
        return LogWriter(options)

    def streamWriter(  # noqa: N802  (Spark's)
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return a writer of a streaming query's batches."""
        options = self._write_options(schema, overwrite=overwrite)
        return LogStreamWriter(options.for_stream())

    def _write_options(self, schema: StructType, *, overwrite: bool) -> WriteOptions:
        if overwrite:
            raise UnexpectedArgumentError(
                "a log cannot be overwritten, only added to: use mode('append'), of a stream "
                "outputMode('append') or 'update'"
            )
        options = parse_write_options(dict(self.options))
        check_columns(schema, options)
        return options
