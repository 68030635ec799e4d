"""An experiment as Kubernetes objects."""
