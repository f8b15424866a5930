"""The process of a node: requests of clients, metrics, health, log lines and the watchdog.

It checks what strangers send and passes it to `quorumlog.node`. Rules of the log are not here.
"""
