"""The simulator: arrivals, Triton's batcher, and interference between partitions. Pure and seeded."""
