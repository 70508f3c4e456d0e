"""What a plan is expected to do, and whether it keeps its promises. Knows no strategy.

evaluate    the judge of queues: times and waits of each, which SLOs are met, pools judged as a whole
verify      the entry for plans: what a plan promises and does not keep, with each shadow made active too
finalise    the entry for strategies: from a draft to a verified plan
sources     where execution times come from
layout      the GPUs of a plan as arrays: one column for each model that a partition serves
estimates   execution times of layouts, asked of a latency model
queues      P99 and mean of queues, each solved once
shadows     adds the shadows asked for
placements  builds GPUs and partitions of a plan
structure   what a plan must be before it can be evaluated: ids, shares, pools, memory
"""
