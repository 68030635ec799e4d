"""Where and how a run takes place: run modes, clusters, connections, seeds."""
