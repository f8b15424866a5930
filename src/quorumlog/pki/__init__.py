"""Certificates for clusters whose operators have no certificate authority of their own.

Only the command line uses it (`quorumlog cert`, `quorumlog cluster init --secure`). Nodes and
clients need Python's `ssl` alone, and take certificates of any authority.
"""
