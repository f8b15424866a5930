"""Topics as Spark reads them: the columns, options and offsets of Spark's Kafka source."""
