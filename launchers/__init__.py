"""Ways to run a partition's Triton: each module is one `controlplane.ports.Launcher`."""
