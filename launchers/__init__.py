"""Ways to run a partition's Triton, each a `controlplane.ports.Launcher`.

process      plain processes of this host
docker/      containers of the local Docker engine
kubernetes/  pods of a cluster

A launcher is a `lifecycle.Lifecycle` that adds what its engine does. It is built from packages that do not
know it:

triton/      one Triton: labels, command line, ports, readiness, why a start failed; every launcher needs it
patience     how long a start is awaited
watch        events of servers and faults of GPUs as one `controlplane.ports.Watch`
host/        processes of this host, their ends and what they leave behind
cpu_quota/   cores as devices, and mechanisms that enforce a share of one
gpu/         NVIDIA GPUs, the sum of their shares, MPS daemons
"""
