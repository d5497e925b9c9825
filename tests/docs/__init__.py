"""Tests of the documentation: its pages, links, code blocks and generated references."""
