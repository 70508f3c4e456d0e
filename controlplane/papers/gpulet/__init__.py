"""gpulet's schedulers (ATC 2022): squishy bin packing, greedy best-fit, elastic partitioning and its ideal.

strategy    the entry: one scheduler as a strategy, with Alg 2 around it
plus        gpu-lets+, as iGniter compares with it
elastic     Alg 1 for all demands, and on fixed partitionings
best_fit    FINDBESTFIT: all gpulets that a model wants
rest        what is left of a rate: empty gpulets, residues joined, turns in a gpulet
neighbours  batches fitted to what runs beside them
sizing      p_eff, p_req and batches of a single model
gpulets     GPUs, gpulets and their residents
scheme      what the schedulers differ in; the paper's text against the authors' code
times       the times that they plan with
"""
