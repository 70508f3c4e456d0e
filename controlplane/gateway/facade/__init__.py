"""The calls that no single Triton can answer: the fleet's own, streams, and what must reach every server.

over_http, over_grpc  the handlers of each protocol; `streams` has ModelStreamInfer
fleet                 the server of each message: routes, sequences, open calls, lost servers
answers               readiness, metadata, index and statistics, as one Triton gives them; `Parts`, what
                      both protocols use
fleet_wide            calls that reach every server or none
callers, refusals     the client of a request, its permissions, and what is refused
bodies, wire          requests as bytes: bodies over HTTP, fields of protobuf messages
upstream              gRPC's connections
__main__              the process: its control socket, the supervisor's next start, memory given back
"""
