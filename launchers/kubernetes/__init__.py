"""Runs each partition's Triton in a pod of a Kubernetes cluster.

objects/     what is created for a server, as values
names        names, labels and the annotation that describes a server
repository   a rendered repository as texts for a ConfigMap and links into the models' volume
devices      `NODE/cpu-0`, `NODE/GPU-...`
options      the settings of all pods
"""
