"""Why a plan is as it is.

explain     why a workload got its share and batch, and what others would give
infeasible  why a workload has no place
nearest     the nearest SLO and rate that would fit
fragments   free shares that would suffice in one piece
"""
