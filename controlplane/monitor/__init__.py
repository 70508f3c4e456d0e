"""Measurements of a running fleet at its gateway. Start reading at `collect`.

collect      the monitor's process: it reads the gateway's log, answers queries and serves the metrics
client       clients of it: queries, and a follower of the log
records      the lines of the log, and those that HAProxy leaves out
state        what the monitor knows: requests second by second and counted, and what the plan promises
metrics      the catalogue of metrics and a page of them
pages        the pages of the metrics port
page_access  access to the pages, as to the gateway's other ports
audit        the audit log
spans        the gateway's spans in its clients' traces
host         how long the gateway waits for a core
"""
