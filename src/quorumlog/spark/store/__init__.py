"""The data source `quorumlog-store`: reads the files of a replica without a server.

Options, plans and rows are here. File formats are known to `quorumlog.storage` alone.
"""
