"""A result as text. Pure: nothing here reads a clock, a file or the network."""
