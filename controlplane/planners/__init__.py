"""Strategies and their only judge: which partition of which GPU serves which workload. Pure."""
