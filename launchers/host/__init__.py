"""What runs on this host.

process_table   the processes with our labels, read from /proc; signals to them
process_ends    their ends, as events
shared_memory   regions that ended servers leave behind
cores           cores as devices
"""
