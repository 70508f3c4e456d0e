"""Schedulers of papers. One folder a paper; the registries alone know them, by name.

igniter/        iGniter (TPDS 2023), its first-fit baselines and gslice+
inss/           InSS: the most goodput of a fixed set of GPUs, its policy and the policy's training
gpulet/         gpulet (ATC 2022) and its baselines
latency_aware/  KAIST's latency-aware scheduler
"""
