"""Shared by our HTTP servers: bare ASGI, checks on callers and connections, metrics, an orderly shutdown."""
