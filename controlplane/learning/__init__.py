"""Training of the InSS strategy's policy: the only room that imports torch and gymnasium (extra `rl`)."""
