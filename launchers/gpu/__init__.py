"""NVIDIA GPUs.

gpus   the GPUs of this host and their readings, from NVML; the limit of the shares of one
mps    MPS daemons and their clients
"""
