"""Commands on a fleet, its controller, jobs of planning and measuring, and the demo.

jobs/        plan, profile, simulate, train, validate: from files to a result
fleet/       apply, rollback, destroy, redirect, status, events: a person's commands on a running fleet
controller/  the one loop that watches a fleet and acts
demo/        the story that `make demo` tells
"""
