"""Training of the InSS strategy's policy: the only package that imports torch (extra `rl`).

training  the entry: the loop, its checkpoint and the learning curve
episodes  problems around a spec, rewards (Eq 3), and the local search's demonstrations
agent     discrete SAC, its networks and its replay buffer
"""
