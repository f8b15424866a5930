"""One replica of one group: events go into its core, the effects come out and are carried out.

Everything that varies between a real and a simulated run comes in through `node.environment`.
"""
