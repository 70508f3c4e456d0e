"""Verbs for a running fleet, by what they are for."""
