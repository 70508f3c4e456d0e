"""gpulet's schedulers (ATC 2022): squishy bin packing, greedy best-fit, elastic partitioning and its ideal.

latency   the measured table L(b, p), and the linear interference factor (`LinearFactor`) strategy  the entry:
one scheduler as a strategy, with Alg 2 around it (`_scaled`) plus      gpu-lets+, as iGniter compares with it
elastic   Alg 1 (`partition`) with FINDBESTFIT (`_all_fit`, `_allocate`), and on fixed partitionings rest
what is left of a rate: empty gpulets, residues joined, turns in a gpulet gpulets   GPUs, gpulets and their
residents, and batches fitted to neighbours sizing    times with a margin; p_eff (`efficient`), p_req
(`wanted`) and batches of a single model; the paper's
          text against the authors' code (`Reading`)
"""
