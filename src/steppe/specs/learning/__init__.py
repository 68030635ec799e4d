"""What is learned and how: agents, networks, optimisers, exploration and preprocessing."""
