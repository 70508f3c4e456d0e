"""The guard: a state machine that keeps every partition served within its SLO. Pure; docs/design/guard.md.

decisions    `tick(state, seen) -> (state, effects)`: the entry point
attention    which partitions a tick looks at, and the observation of them
signals      the evidence of answers, rates and silences: the rule of a verdict
sequential   evidence of a broken SLO from late answers
arrivals     the dispersion of arrivals, which makes clusters of late answers larger
service      evidence of longer batch times, and the delays of a stall
ahead        the P99 that slower batches lead to
host         contention of the host, and the part of a delay that it explains
culprits     endpoints and clients whose requests were open at each death
starts       back-off and breaker for servers that fail to start
state        values: guarded partitions, placed servers, effects, limits, invariants
"""
