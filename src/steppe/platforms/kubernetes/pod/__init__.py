"""What runs inside the Pods of an experiment."""
