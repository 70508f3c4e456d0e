"""One Triton, whichever engine runs it.

labels       a server's spec and ports as text on the server, and back
program      Triton's installation and command line
starting     one start per name at a time, each with ports of its own (`ports`)
readiness    whether the started server answers with its name and models
server_log   why a start failed
"""
