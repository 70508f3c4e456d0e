"""NVIDIA GPUs.

gpus     the GPUs of this host and their readings, from NVML
shares   the limit of a GPU's shares
mps      MPS daemons and their clients
faults   faults that end a GPU's servers
"""
