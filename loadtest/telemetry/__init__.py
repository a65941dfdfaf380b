"""What is seen of the server, its GPUs and this host while a level is played, and what of it reaches the result."""
