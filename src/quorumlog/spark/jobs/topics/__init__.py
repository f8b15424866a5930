"""Jobs on topics: archive, replay (produce an archive again), stats, and audit of an archive."""
