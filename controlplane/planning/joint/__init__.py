"""The default strategy: sharing queues, sizes, places and shadows decided together.

strategy     the entry: a request becomes a plan; where arrivals are bursty, Poisson rates grow until servers
             hold the bursts
choice       the cheapest of all searches, and what to leave out where GPUs are limited
small_cases  up to 12 workloads: combinations of pools weighed by plain sizes
grouping     more workloads: which of them share a queue, and on how many servers. What pools cost and carry
             (`offers`, `pairs`), a family's cheapest `partition`, what the exact queue refuses, lower offers
search       one plan in the making: packed by tables, corrected by the exact queue (`queue_check`), emptied
packing      items onto the GPUs of one type, then onto fewer of them
turns        models that take turns in one partition, so that more GPUs can be given up
"""
