"""What our HTTP servers share: an address, bare ASGI, and an orderly end."""
