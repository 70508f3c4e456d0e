"""The controller of a fleet. Start reading at `loop`.

serve        the process: its lock, the request log, its metrics endpoint
loop         look, decide, act
observer     what the guard sees: requests that ended, and the health of every server
adopt        what a new controller takes over from what runs
workers      slow work beside the loop: starts, loads, drains, stops
recorder     the record, minute by minute
status_file  what `ctl status` reads
exporter     /healthz and /metrics
plan_only    the same loop that only says what it would do
"""
