"""Progress and text in a terminal, a notebook or a pipe: for commands and for `steppe.train`."""
