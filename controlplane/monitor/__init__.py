"""What is seen: latency windows, Triton's statistics, NVML."""
