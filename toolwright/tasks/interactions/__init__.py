"""The simulated users that come with Toolwright, one a file."""
