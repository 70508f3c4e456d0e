"""Why a plan is as it is.

explain       why a workload got its share and batch
alternatives  what other shares and batches would give
infeasible    why a workload has no place
refusals      fragmented free shares, and the nearest SLO and rate that would fit: what all strategies say
"""
