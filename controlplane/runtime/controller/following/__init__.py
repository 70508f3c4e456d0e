"""Load control in a running controller. Start reading at `follower`.

follower  look, decide and carry out, once a second
arrivals  arrivals by second, from requests that have ended
running   the plan that runs, and whether and how it follows the load
planning  the process that looks for another plan
applying  the thread that applies one
memory    what the next controller and other commands read
"""
