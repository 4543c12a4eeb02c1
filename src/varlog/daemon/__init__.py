"""What all daemons share: their config, command lines, logs, life cycle, metrics and the page that shows them.

A daemon's own part is one coroutine that is handed a `service.Service`. Everything here is about starting quickly,
being watched cheaply and ending with a word that helps; nothing here knows the log.
"""
