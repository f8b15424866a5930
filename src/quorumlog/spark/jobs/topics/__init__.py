"""Jobs on topics: archive them, produce an archive again, count, and compare an archive with them."""
