"""`quorumlog bench`: rates and latencies of a cluster, and the limits of the machine.

Loads, events, cases and figures are apart. It measures through the client only; scripts that
measure parts of the product are in `benchmarks/`.
"""
