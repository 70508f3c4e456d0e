"""The default strategy: sharing queues, sizes, places and shadows decided together.

strategy        the entry: a request becomes a plan
choice          the cheapest of all searches, and what to leave out where GPUs are limited (`admission`)
context         what all searches for one plan share
bursts          Poisson rates that grow until the servers hold bursty arrivals
small_cases     up to 12 workloads: combinations of pools weighed by plain sizes
queue_sharing/  more workloads: which of them share a queue, and on how many servers
search          one plan in the making: packed by tables, corrected by the exact queue (`queue_check`)
packing         items onto the GPUs of one type (`sizing`), then onto fewer of them (`dissolve`)
"""
