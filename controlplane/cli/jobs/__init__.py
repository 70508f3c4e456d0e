"""Verbs that need no running fleet, one module for each."""
