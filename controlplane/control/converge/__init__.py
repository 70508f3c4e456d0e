"""From what runs to what the plan means. Pure.

desired    a plan as servers and routes
actions    the ordered list of actions that makes what runs equal to that: the entry point
redirect   a redirect by hand, from active servers to their shadows
"""
