"""The client of a cluster: its API, the workloads and Pods of a run, and their results."""
