"""Another plan in place of the one that runs. Values in, values out.

smallest_change  the plan for other rates that changes least: nothing, batches, more servers, some GPUs, all;
                 what its GPUs hold beyond the rates
reuse            the running GPUs with today's rates; ids for a new plan, so that most of what runs stays
differences      what one plan changes about another: partitions, endpoints, terms; what its predictions miss
"""
