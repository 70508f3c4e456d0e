"""GPUs, latency objectives and CPU time of plans, beside papers and references."""
