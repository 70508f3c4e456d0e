"""Commands on a fleet, its controller, jobs of planning and measuring, and the demo.

jobs/        plan, profile, simulate, train, validate: from files to a result
fleet/       apply, rollback, destroy, redirect, status, events: the user's commands on a fleet
controller/  the loop that watches a fleet and acts
autoscaler/  the search for a plan that follows the load, in a process of its own
dashboard/   the live page
demo/        the steps of `make demo`
"""
