"""The guard: a state machine that keeps every partition served within its SLO. Pure; docs/design/guard.md.

decisions    `tick(state, seen) -> (state, effects)`: the entry point
signals      what answers, rates and silences say of a server: the rule of a verdict
sequential   when late answers are enough evidence of a broken SLO
service      when batches certainly take longer than they did, and what a stall delays
ahead        whether slower batches will break the SLO
host         when the host, not a server, makes requests late
starts       back-off and breaker for servers that fail to start
state        the values: guarded partitions, placed servers, effects, limits, invariants
"""
