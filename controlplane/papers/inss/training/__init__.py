"""Training of the InSS strategy's policy: the only package that imports torch and gymnasium (extra `rl`).

Start with `training.train`. `environment` makes episodes of the problems that `distribution` draws, `sac` is
the agent, `replay` its memory, `teacher` its first examples; `export` turns its networks into plain arrays.
"""
