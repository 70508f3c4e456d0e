"""A server's objects in a cluster, as values: nothing here calls the API.

pod        the pod of one server (its volumes: `volumes`; its share of a GPU: `gpu`)
companions its ConfigMap with the rendered files, and its partition's PodDisruptionBudget
"""
