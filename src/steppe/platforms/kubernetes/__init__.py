"""Kubernetes: an experiment as plain Jobs, a Service, a ConfigMap, a Secret and a claim. Importing this is light.

`rendering` and `shapes` say what an experiment is on a cluster; `kubeapi` talks to the cluster, `waiting` says why Pods
do not run; `pod` is what runs in a Pod, with `door` as the way to talk to it; `remote_run` is how a client sees it all.
"""
