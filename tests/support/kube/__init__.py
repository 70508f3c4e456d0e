"""A real Kubernetes cluster on one host: etcd, API server, scheduler, controller manager and two kubelets.

`cluster.running()` starts it and leaves nothing behind. `processes`, `network`, `control_plane`, `node` and
`images` are its parts; `leftovers` removes all of it, also what a killed run left.
"""
