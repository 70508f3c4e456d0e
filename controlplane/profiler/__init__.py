"""Measures models through a launcher: load, sweep, session."""
