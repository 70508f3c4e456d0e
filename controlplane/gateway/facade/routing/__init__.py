"""The servers of each endpoint, the sequences that they hold, and their counters."""
