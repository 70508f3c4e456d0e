"""Plots, one module for each; they need the extra `plot`."""
