"""Turns scores into a gradient: pure functions of tensors, found by name.

`advantages` score tokens, `losses` weigh them, `kl` pulls towards the reference, `aggregate` makes one number
of many, `selection` decides what is learned from, `correction` weighs the gap between sampling and training.
"""
