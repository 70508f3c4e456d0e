"""Decisions about the running fleet. Pure: values in, values out.

converge    what differs between the plan and what runs, and the actions that close the gap
guard       what to do where a server is slow, hangs or dies
autoscaler  when the plan changes with the rates that arrive
order       the order of requests at the gateway
"""
