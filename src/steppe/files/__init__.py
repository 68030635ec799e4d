"""Files that survive a crash: written under a temporary name, checked, found again after a rename."""
