"""The demonstration behind `make demo`: real data, a killed leader, Spark, and a proof."""
