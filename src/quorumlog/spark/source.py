"""The data source `quorumlog`.

spark.read.format("quorumlog").option("servers", "h:p,h:p,h:p").option("group", "g").load()
"""

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from quorumlog.spark.batch import LogReader
from quorumlog.spark.options import parse_options
from quorumlog.spark.schema import default_schema, wanted_columns


class QuorumlogSource(DataSource):
    """Reads committed entries of a group; options are in `quorumlog.spark.options.KNOWN`."""

    @classmethod
    def name(cls) -> str:
        """Return the name used in `format(...)`."""
        return "quorumlog"

    def schema(self) -> StructType:
        """Return the columns without a user's `.schema(...)`."""
        options = parse_options(dict(self.options))
        return default_schema(include_headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns that the schema names."""
        return LogReader(parse_options(dict(self.options)), wanted_columns(schema))
