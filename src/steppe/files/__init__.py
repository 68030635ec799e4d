"""Files that survive a crash: written under a temporary name, with checksums, and found again after a rename."""
