"""Which workloads share a queue, and on how many servers.

grouping      the entry: promising groupings of all workloads
pool_offers   what pools of one model cost and carry
partitioner   a family of workloads cut into groups that fill their pools
pairs         families that are cheaper side by side on a GPU than each on its own
"""
