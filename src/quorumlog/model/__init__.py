"""Values shared by every room: entries, blocks, messages, configuration, limits, errors.

Nothing here does input or output, reads a clock or draws a random number.
"""
