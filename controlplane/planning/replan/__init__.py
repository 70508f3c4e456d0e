"""What a plan changes about the one before, and how changes are kept few.

differences      what happens to partitions, endpoints and terms between two plans
stable_ids       names for GPUs and partitions of a new plan that move as little as possible
reuse            the plan that runs now, with today's rates
smallest_change  the plan for other rates that changes least
headroom         what its GPUs hold beyond those rates
"""
