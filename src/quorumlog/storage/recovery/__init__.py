"""After a crash or damage: the end of a log is found, damage is named and quarantined."""
