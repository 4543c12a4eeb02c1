"""The sequencer as a daemon; what it decides is in `varlog.core.sequencer`."""
