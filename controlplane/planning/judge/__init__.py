"""What a plan is expected to do, and whether it keeps its promises. Knows no strategy.

layout      the GPUs of a plan as arrays: one column for each model that a partition serves
estimates   execution times of layouts, asked of a latency model
turns       several models in a partition: what slows them, and their rounds
queues      P99 and mean of queues, each solved once
evaluate    times and waits of every queue of a plan, pools judged as a whole; which promises hold
failover    the same with a shadow made active
shadows     adds the shadows asked for
placements  builds GPUs and partitions of a plan
structure   what a plan must be before it can be evaluated: ids, shares, pools, memory
verify      the entry for judging: what a plan promises and does not keep
finalise    the entry for strategies: from a draft to a verified plan
"""
