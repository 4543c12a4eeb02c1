"""Log stream storage: what a replica holds on disk, and how it gets there.

`log.LogStreamStorage` is one replica's files. Bytes are made and taken apart in `format` alone, files are seen through
the seam of `files` alone, so the simulator can stand in for the disk. `writer.GroupCommitWriter` is the thread that
writes in production.
"""
