"""Measurement of models on real servers. Start reading at `session`."""
