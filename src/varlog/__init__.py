"""Varlog: a strongly consistent, totally ordered distributed log.

Start reading at `varlog.types`, the words of the field; then `varlog.batch`, the unit everything is made of; then
`varlog.core`, where every decision of the protocol is taken without any I/O.
"""

__version__ = "0.1.0.dev0"
