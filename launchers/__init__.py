"""Ways to run a partition's Triton: `process` and `docker` are each a `controlplane.ports.Launcher`.

A new launcher is built from parts that do not know the engine:

labels         a server's spec and ports as text on the server, and back
triton         Triton's installation and command line
starting       one start per name at a time, each with ports of its own (`ports`)
readiness      whether the started server answers with its name and models
server_log     why a start failed
watch          ends of servers and GPU faults (`gpu_faults`) as one `controlplane.ports.Watch`

and from these for its kind of engine or device:

process_table, process_ends, shared_memory   processes of this host, their ends and what they leave behind
docker_engine, docker_events, containers     the Docker engine, its events, a container as a value
cores, cpu_quota/                            cores as devices, and mechanisms that enforce a share of one
gpus, gpu_shares, mps                        NVIDIA GPUs, the sum of their shares, MPS daemons
"""
