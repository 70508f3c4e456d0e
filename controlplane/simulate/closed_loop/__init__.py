"""The guard in the loop: the controller's own decisions about a fleet on simulated time.

run     the loop: faults, requests, observations, decisions; begin here
fleet   the simulated fleet: servers that start, stop, slow down and die
live    the simulator's event loop, whose servers and routes change while it runs
faults  what goes wrong, and when; what came of it, with and without the guard
"""
