"""What one of several controllers in a cluster needs of the API.

election  who leads, decided from what is known of the Lease; pure
lease     the Lease in the API server, taken and renewed
fleets    the custom resource Fleet: the plan that is wanted, and what became of it
orders    the object as a user outside the cluster writes it
gateways  the addresses of the gateway's replicas
"""
