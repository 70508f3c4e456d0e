"""Pods of a Kubernetes cluster.

launcher      the `controlplane.ports.Launcher`
pod           a server's pod as a value; `files`: its rendered repository, and its partition's budget
pods          what the cluster says of pods: why they ended or do not start, and a watch of them
names         names, labels and the annotation that describes a server
options       the settings of all pods
devices       `NODE/cpu-0`, `NODE/GPU-...`, and the nodes that have them
api           calls of the API server: errors in our words with the rules that a fleet needs, patience
capabilities  what of these a cluster lacks
leading/      what one of several controllers in a cluster needs of the API
"""
