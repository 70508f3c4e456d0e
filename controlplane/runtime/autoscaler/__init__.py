"""Following the load in a running controller. Start reading at `autoscaler`.

autoscaler  look, decide and carry out, once a second; arrivals by second, from requests that have ended
running     the plan that runs, whether and how it follows the load, and the thread that applies another one
search      the process that looks for another plan; `propose`: the plan that it finds
"""
