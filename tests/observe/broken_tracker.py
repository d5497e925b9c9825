"""A tracker whose package is broken."""

import toolwright_has_no_such_package  # noqa: F401

Broken = object
