"""Clients with their grants, and the certificate: values, files and HAProxy's maps."""
