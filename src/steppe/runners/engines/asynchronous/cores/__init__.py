"""What learns, whatever it learns with."""
