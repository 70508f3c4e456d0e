"""One Triton server, whichever launcher runs it.

labels      a server's spec and sockets as text on the server
program     the installation, the command line
readiness   whether it is up, how long that is awaited, and what its log says of a failed start
"""
