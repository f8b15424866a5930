"""After a crash or damage, finds where a log ends, and names, quarantines and repairs damage.

`recovery` opens a log, `damage_scan` distinguishes a torn tail from damage, and `diagnosis` says
what is wrong with one entry. Changes to a log that is in use go through `log`.
"""
