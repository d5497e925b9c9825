"""The views of the page: each module here answers one address or a few that belong together."""
