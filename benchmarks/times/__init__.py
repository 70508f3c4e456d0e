"""Predicted and simulated times beside measured ones."""
