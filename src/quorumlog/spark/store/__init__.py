"""The data source `quorumlog-store`: reads the files of a replica without a server."""
