"""The simulator: arrivals, Triton's batcher, and interference between partitions. Pure and seeded.

Start with `engine.simulate`. `network` turns a plan into servers and routes, `wiring` turns these into
arrays, `kernel` is the event loop, `result` holds what it counted.
"""
