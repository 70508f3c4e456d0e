"""Verbs that need no running fleet, by what they are for."""
