"""Kubernetes: an experiment as plain Jobs, a Service, a ConfigMap, a Secret and a claim. Importing this is light.

`manifests` renders an experiment as objects; `client` talks to the cluster, with `remote_run` as its view of a run;
`diagnosis` explains why Pods do not run; `pod` is the code inside the Pods, with a status server that clients ask; and
`storage` keeps results in object storage.
"""
