"""Ways to run a partition's Triton, each a `controlplane.ports.Launcher`.

process      plain processes of this host
docker/      containers of the local Docker engine
kubernetes/  pods of a cluster

A launcher is a `lifecycle.Lifecycle` that adds what its engine does. It is built from packages that do not
know it:

triton/      one Triton: labels, command line, ports, readiness, why a start failed; every launcher needs it
watch        events of servers and GPU faults as one `controlplane.ports.Watch`
host/        processes of this host, their ends and what they leave behind, cores as devices
cpu_quota/   mechanisms that enforce a share of a core
gpu/         NVIDIA GPUs, the sum of their shares, MPS daemons, faults
"""
