"""A seeded oracle: arrivals, Triton's batcher, partitions coupled by interference. Pure."""
