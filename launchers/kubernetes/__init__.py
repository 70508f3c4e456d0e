"""Pods of a Kubernetes cluster.

launcher      the `controlplane.ports.Launcher`
objects/      what is created for a server, as values
names         names, labels and the annotation that describes a server
repository    a rendered repository as texts for a ConfigMap and links into the models' volume
options       the settings of all pods
devices       `NODE/cpu-0`, `NODE/GPU-...`; `nodes` finds them in the cluster
ends          why a pod ended or does not start; `events` reads ends from a watch
api           calls of the API server: errors in our words, patience, permissions; `decoding` for its threads
remote        a command in a pod
permissions   the rules that a fleet needs
capabilities  what a cluster has of what a fleet needs
"""
