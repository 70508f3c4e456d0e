"""The only reading and writing of YAML and JSON; pydantic specs to and from the domain."""
