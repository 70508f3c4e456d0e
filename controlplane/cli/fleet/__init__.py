"""Verbs for a running fleet, one module for each."""
