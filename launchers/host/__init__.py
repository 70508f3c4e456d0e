"""Processes of this host.

process_table     the processes with our labels, read from /proc; signals to them
process_watcher   their ends, as events
server_sockets    the paths and folders of servers' sockets
shared_memory     a /dev/shm for each server, and regions that ended servers leave behind
"""
