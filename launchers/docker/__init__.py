"""Containers of the local Docker engine.

launcher     the `controlplane.ports.Launcher`
containers   a container as a value
engine       the connection to the engine, its images and its events
"""
