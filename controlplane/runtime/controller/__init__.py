"""The controller of a fleet. Start reading at `loop`.

serve          the process: its lock, the request log, /healthz and /metrics
loop           look, decide, act
answers        the request log as answers, what a line says of its server, and requests in flight
observer       the guard's observations: answers, and the health of every server
probes         what is asked of a server to know whether it lives, and what is remembered of it
engine         the servers that run according to the launcher and the engine
watches        the gateway's processes, and the repository against what was applied
adopt          adoption of a running fleet by a new controller
executor       what becomes of decisions: announced by an `Actor`, carried out by an `Executor`
workers        slow work beside the loop: starts, loads, drains, stops; when a server has drained
recorder       what other commands read: the record, and the file for `ctl status`
elected        the controller in a cluster
"""
