"""Files of the operating system: sequences of files of one size, mappings, free space, writes.

Every file is opened through `os_files`. Nothing here knows what the bytes mean.
"""
