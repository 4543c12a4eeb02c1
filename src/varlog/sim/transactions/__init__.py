"""Runs of the simulator with transactions, in either ordering: clients that transact, and readers that show only what
is committed, on the clusters of the other runs.
"""
