"""Processes of this host.

process_table     the processes with our labels, read from /proc; signals to them
process_watcher   their ends, as events
server_sockets    a folder for the sockets of each server
shared_memory     a /dev/shm for each server, and regions that ended servers leave behind
"""
