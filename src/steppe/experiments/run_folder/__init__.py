"""The run folder: the spec, the status and its one owner, the requests to that owner."""
