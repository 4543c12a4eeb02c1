"""The storage node: the core and the storage in a process, with sockets, files and a clock around them."""
