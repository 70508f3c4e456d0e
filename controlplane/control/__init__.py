"""Decisions about the running fleet: what differs, what to do. Values in, values out."""
