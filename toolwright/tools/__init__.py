"""Tools: what a policy can call, built from configuration in the process that uses them."""
