"""Finds, reads and checks spec files, and says in one sentence what is wrong with one."""
