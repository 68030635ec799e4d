"""Why Pods do not run, and whether a cluster can run experiments."""
