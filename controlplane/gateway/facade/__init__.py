"""The calls that no single Triton can answer: the fleet's own, streams, and what must reach every server."""
