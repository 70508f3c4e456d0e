"""Rendering of config.pbtxt, HAProxy's configuration and model repositories, as text."""
