"""One endpoint for the fleet.

haproxy    `HaproxyGateway`, the port `Gateway`: commits routes to all below
slots      which slot serves which endpoint, and the gates before them; pure
store      the slot table on disk, and every text that HAProxy starts from
running    the running HAProxy: its runtime interface, and changes of its slots
startup    starting the processes, changing the options of running ones, ending them
processes  the processes as others see them: found, started, ended, missing; the sockets that they hold
supervise  the supervisor, which keeps them running; `programs` has their command lines, `controller_keeper`
           the fleet's controller
facade     what no single Triton can answer
replicas   several gateways behind one address
security   clients with their grants and limits, and the certificate
"""
