"""The user's commands on a fleet. Start reading at `fleet`: from a plan to running servers.

fleet               apply, rollback, destroy; `redirect` by hand
execute             runs converge's actions, with a journal
preflight           all refusals before a plan changes anything; whether the fleet follows its load
rendering           a plan's model repositories on disk, from pinned models, and which are needed
controller_process  start, find and stop the fleet's controller
status, history     the present state; events and record on disk
calibrate           predicted against observed times, live or from the record
"""
