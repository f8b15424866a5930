"""The format of entries and index records: headers, CRCs, and where an entry lies.

The modules scan and check entries, read them by index and place new ones. They decide nothing: what
is done about an entry that is damaged is up to `recovery` and `log`.
"""
