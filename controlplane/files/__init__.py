"""The only reading and writing of YAML and JSON: each file is a dataclass, most of them of the domain.

documents   checks and writes by dataclass; mistakes, yaml_text: what is wrong, and on which line
specs, plans, measurements, catalogue   what users write and share
fleets, following, load_state, pinned, rendered, models, policies   what commands keep
gateway, gateway_paths, clients, limits, queries, waiting   between the processes of a gateway
reading, writing   bytes from and to the disk
"""
