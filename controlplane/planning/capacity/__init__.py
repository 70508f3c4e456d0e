"""What a share of a GPU can serve. Calculated from latency models and queues, before anything is placed.

context         one question: its GPU types, workloads and queues, and when to stop
gpu_types       one GPU type with its latency model, rule, quantile and the times of every model alone
client_batches  requests of several inferences, counted back and forth
items           which workloads may share a queue, and what one partition serves
p99_table       the P99 of a queue as a table, and its inverses: tolerated slowdown and largest rate
tolerance       for each item and share the best batch and the slowdown it tolerates
sizing          which items fit one GPU together, at which smallest shares
options         how a group of workloads may be served: by one partition or by a pool, on which GPU type
lower_bound     what no plan can cost less than
"""
