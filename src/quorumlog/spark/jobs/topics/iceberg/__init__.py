"""Archives of topics as Apache Iceberg tables; they need the extra `iceberg`."""
