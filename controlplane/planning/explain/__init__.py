"""Why a plan is as it is.

explain       why a workload got its share and batch
alternatives  what other shares and batches would give
infeasible    why a workload has no place: fragmented free shares, the nearest SLO and rate that would fit
"""
