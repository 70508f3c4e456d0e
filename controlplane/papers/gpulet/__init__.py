"""gpulet's schedulers (ATC 2022): squishy bin packing, greedy best-fit, elastic partitioning and its ideal.

latency     the measured table L(b, p), and the linear interference factor (`LinearFactor`)
strategy    the entry: one scheduler as a strategy, with Alg 2 around it (`scaled`)
plus        gpu-lets+, as iGniter compares with it
elastic     Alg 1 as printed (`partition`), and the ideal scheduler's fixed partitionings (`on_fixed`)
coded       the same in the authors' code, with rest (batches fitted to neighbours; what is left of a rate:
            empty gpulets, residues joined, turns)
gpulets     GPUs, gpulets and their residents
sizing      times with a margin; p_eff, p_req (`ideal`), duty cycles and batches
"""
