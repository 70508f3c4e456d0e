"""InSS: a fixed set of GPUs, a policy that places, exact enumeration that batches (Sec. 3.3 and 5)."""
