"""Makes what several test folders share (such as `raft_cluster`) importable from all of them."""

import hypothesis

hypothesis.settings.register_profile("untimed", deadline=None)  # machines are shared and slow
hypothesis.settings.load_profile("untimed")
