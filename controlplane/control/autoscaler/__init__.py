"""Following the load: what rates arrive, what the plan that runs is for, and when to change it.

decisions   `tick(state, seen) -> (state, effects)`: the entry point
state       the values: state, observations, proposals, effects, and what must always hold
rates       counts of arrivals as estimates with bounds
"""
