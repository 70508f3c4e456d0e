"""Requests as bytes: their bodies, and the few protobuf fields that decide where a request goes."""
