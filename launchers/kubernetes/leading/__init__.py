"""What one of several controllers in a cluster needs of the API, and a user outside of them.

lease   who leads: decided from what is known of the Lease, which is taken and renewed
fleets  the custom resource Fleet: the plan that is wanted, and what became of it; the gateway's replicas
remote  a command in a pod
"""
