"""What runs on this host.

servers         the entry: servers that are processes, listed, ended, counted and watched
process_table   the processes with our labels, read from /proc; signals to them
process_ends    their ends, as events
unread          what their sockets have received and they have not read
shared_memory   regions that ended servers leave behind
cores           cores as devices
"""
