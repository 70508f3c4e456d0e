"""What runs on this host.

process_table     the processes with our labels, read from /proc; signals to them
process_watcher   their ends, as events
unread            what their sockets have received and they have not read
shared_memory     a /dev/shm for each server, and regions that ended servers leave behind
cores             cores as devices
"""
