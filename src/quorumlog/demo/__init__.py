"""The demonstration that `make demo` runs: real data, a killed leader, Spark, and a proof.

It uses what users use. It reads store files only to prove that the replicas are equal.
"""
