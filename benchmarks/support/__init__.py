"""What several benchmarks share, or what is long beside its figures."""
