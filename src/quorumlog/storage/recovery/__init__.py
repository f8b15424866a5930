"""After a crash or damage: where a log ends is found, and damage is named, quarantined, repaired.

`recovery` opens a log, `damage_scan` tells a torn tail from damage, and `diagnosis` says what is
wrong with one entry. Changes to a log that is in use go through `log`.
"""
