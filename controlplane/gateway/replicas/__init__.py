"""Several gateways behind one address, as in a Deployment: each replica gets the same routes.

wire     routes as a document, and the paths of the control port
agent    the program of one replica: its gateway, and the control port that takes routes
client   one replica's control port, for whoever commits
gateway  `ReplicatedGateway`, the port `Gateway` over all replicas
"""
