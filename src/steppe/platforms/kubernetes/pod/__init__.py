"""The programs in the Pods of an experiment."""
