"""The metadata repository's daemon side: what surrounds `varlog.core.metarepo` and touches the outside world."""
