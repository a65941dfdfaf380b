"""Shared-nothing workers that play a level's requests on real sockets."""
