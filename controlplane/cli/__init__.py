"""One file a verb, no logic."""
