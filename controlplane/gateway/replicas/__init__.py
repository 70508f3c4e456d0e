"""Several gateways behind one address, as in a Deployment: each replica gets the same routes.

gateway       `ReplicatedGateway`, the port `Gateway` over all replicas
control_port  what passes over a replica's control port, and its client
agent         the program of one replica: its gateway, and the control port that takes routes
"""
