"""The only reading and writing of YAML and JSON: each file is a dataclass, most of them of the domain.

documents   checks and writes by dataclass; mistakes: what is wrong, and on which line
plans, measurements, catalogue   what users write and share
fleets, following, pinned, rendered, models   what commands keep
gateway, gateway_paths   between the processes of a gateway
reading, writing, waiting   bytes from and to the disk, and locks
"""
