"""The latency models, one module each, with one function `fit(profiles, device)`. A short one: `gpulet`."""
