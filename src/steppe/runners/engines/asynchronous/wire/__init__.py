"""What a learner and its workers say to each other."""
