"""What our HTTP servers share: bare ASGI, checks on callers and connections, metrics, an orderly end."""
