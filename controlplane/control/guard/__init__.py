"""The guard: a state machine that keeps every partition served within its SLO. Pure; docs/design/guard.md.

decide         `tick(state, seen) -> (state, effects)`: the entry point
observe        the answers weighed as evidence, of the partitions that are due; what a tick keeps
rule           the verdict on a server that lives: other causes than the server, and the words for it
queues         one queue: its promise (`promise`), its rate, its evidence, and what clients saw
late_answers   evidence of a broken SLO from late answers, with the dispersion of arrivals
batch_times    evidence of longer batch times against the server's `baseline`, which has the P99 they lead to
learning       whether a model is slower than planned on all its servers
standbys       shadows: the next one's share, the share that one gives back
deaths         how long a server may be silent; back-off and breaker for starts, lost GPUs, requests that were
               open at each death
state, effects values: guarded partitions, servers and their shares, limits; what the controller is to do
"""
