"""The data source `quorumlog-store`.

spark.read.format("quorumlog-store").load("<directory of a group>")
"""

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from quorumlog.spark.source.pushdown import offers_filters
from quorumlog.spark.store.options import parse_options
from quorumlog.spark.store.reader import FilteringStoreReader, StoreReader
from quorumlog.spark.store.schema import default_schema, wanted_columns


class QuorumlogStoreSource(DataSource):
    """Reads data files without a server; options are in `quorumlog.spark.store.options.KNOWN`."""

    @classmethod
    def name(cls) -> str:
        """Return the name used in `format(...)`."""
        return "quorumlog-store"

    def schema(self) -> StructType:
        """Return the columns without a user's `.schema(...)`."""
        options = parse_options(dict(self.options))
        return default_schema(include_headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns that the schema names."""
        options = parse_options(dict(self.options))
        narrows = options.pushes_conditions and offers_filters()
        kind = FilteringStoreReader if narrows else StoreReader
        return kind(options, wanted_columns(schema))
