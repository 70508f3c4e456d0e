"""Commands on a fleet, its controller, jobs of planning and measuring, and the demo.

jobs/        plan, profile, simulate, train, validate: from files to a result
fleet/       apply, rollback, destroy, redirect, status, events: the user's commands on a fleet
controller/  the loop that watches a fleet and acts
demo/        the steps of `make demo`
"""
