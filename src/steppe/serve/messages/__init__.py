"""Questions, answers and feedback, and how each protocol writes them."""
