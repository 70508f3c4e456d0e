"""What a share of a GPU can serve. Calculated from latency models and queues, before anything is placed.

gpu_types      one GPU type with its latency model, rule, quantile and the times of every model alone
client_batches requests of several inferences, counted back and forth
items          what one partition serves, and many of them as arrays
families       which workloads may share a queue
waiting_times  the P99 of a queue as a table, and its inverse: the slowdown that a partition tolerates
tolerance      for each item and share the best batch and the slowdown it tolerates
largest_rate   the most that a server carries within an SLO
lower_bound    what no plan can cost less than
options        how a group of workloads may be served: by one partition or by a pool, on which GPU type
planned        items on GPUs as the values of a plan
"""
