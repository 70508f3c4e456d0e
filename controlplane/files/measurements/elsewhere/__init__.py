"""Measurements that other tools made: CSV of perf_analyzer and Model Analyzer, JSON of AIPerf.

Each module reads one format into the same `Run`s: a batch with one request under way at a time. With more of
them Triton may form other batches than the client sends, and no format says which.
"""
