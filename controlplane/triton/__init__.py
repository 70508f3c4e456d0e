"""What Trisect asks of one running Triton.

client      blocking calls: inferences that prove a model, statistics, configurations, loads
samples     the small inference that a model can answer
statistics  means from differences of Triton's cumulative counters
"""
