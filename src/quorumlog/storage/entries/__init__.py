"""The format of entries and index records: headers, checksums, where an entry lies.

It scans and reads them and decides nothing about them.
"""
