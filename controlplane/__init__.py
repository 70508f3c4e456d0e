"""Trisect: plans which share of which GPU each model gets, and runs the plan on Triton."""
