"""Files of a fleet that follows its load.

kept   the spec and the profiles that its plans are made from, and how it follows
state  what its controller knows about the load, for the next controller
rates  the rates that were planned, seen and forecast, for other commands
"""
