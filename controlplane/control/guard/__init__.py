"""The guard: a state machine that keeps every partition served within its SLO. Pure; docs/design/guard.md.

decide         `tick(state, seen) -> (state, effects)`: the entry point; what a tick keeps is in `tick`
observe        the answers weighed as evidence, of the partitions that are due
rule           the verdict on a server that lives; `reasons` it in words, `causes` the other ones
queues         one queue: its promise (`promise`), its rate, its evidence
late_answers   evidence of a broken SLO from late answers, with the dispersion of arrivals (`arrivals`)
batch_times    evidence of longer batch times against the server's `baseline`
predicted_p99  the P99 that slower batches lead to
slo_window     what clients saw, whatever the rule decides
learning       whether a model is slower than planned on all its servers
liveness       how long a server may be silent
standbys       shadows: the next one's share, the share that one gives back
deaths         back-off and breaker for starts, lost GPUs; `culprits` has the requests open at each death
state, effects values: guarded partitions, servers and their shares, limits; what the controller is to do
"""
