"""Files of the operating system: sequences of files of one size, mappings, free space, write plans.

Every file is opened through `os_files`, which names file and reason of each failure. Nothing here
knows what the bytes mean.
"""
