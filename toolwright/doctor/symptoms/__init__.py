"""The symptoms of a run: each is one function, registered by name in a module of this package.

A plugin adds its own to the place `toolwright.doctor.symptoms`.
"""
